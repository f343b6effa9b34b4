"""Programs compiled while a pass is registered contain it; later ones do not."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import lazytpu
from lazytpu.engine.programs import environment
from lazytpu.engine.programs.target import target
from lazytpu.ir.unary import CosOp, SinOp
from lazytpu.options import options
from lazytpu.passes import registered
from lazytpu.passes.target import Target
from lazytpu.runtime.xla import client


@dataclass(frozen=True)
class SineToCosine(ModulePass):
    """A wrong rewrite, so that its effect shows in values."""

    name = "sine-to-cosine"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if isinstance(inner, SinOp):
                block = inner.parent
                assert block is not None
                cosine = CosOp.create(operands=inner.operands, result_types=inner.result_types)
                block.insert_op_before(cosine, inner)
                inner.results[0].replace_all_uses_with(cosine.results[0])
                block.erase_op(inner)


def sine() -> float:
    return float(torch.zeros(3, device="tpu").sin().sum())


def test_registering_a_pass_recompiles_programs() -> None:
    assert sine() == sine() == 0.0
    with registered(SineToCosine, phase="simplify"):
        assert sine() == 3.0
        assert "sine-to-cosine" in [record.name for record in lazytpu.graphs()[-1].passes]
    assert sine() == 0.0


@pytest.mark.parametrize(
    ("platform", "kind", "expected"),
    [
        ("tpu", "TPU v6 lite", Target("tpu", "v6e")),
        ("tpu", "TPU v4", Target("tpu")),
        ("gpu", "NVIDIA H200", Target("gpu")),
        ("metal", "M4", Target("cpu")),
    ],
)
def test_target_follows_the_device_kind(
    platform: str, kind: str, expected: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "platform", lambda: platform)
    monkeypatch.setattr(client, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    assert target() == expected


def test_target_is_the_platform_unless_set() -> None:
    assert target() == Target("cpu")
    default = environment.settings()
    with options(target="v6e"):
        assert target() == Target("tpu", "v6e")
        assert environment.settings() != default
        with registered(SineToCosine, phase="final", targets=["v6e"]):
            assert environment.extended()
    assert not environment.extended()
    with registered(SineToCosine, phase="final", targets=["v6e"]):
        assert not environment.extended()
