"""The results of `lazytpu.export`, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import lazytpu
from lazytpu.exporting.exported import Exported
from lazytpu.runtime.xla import portable
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import ir, stablehlo
from tests.exporting.models import Function


@pytest.fixture(scope="module")
def linear() -> tuple[nn.Linear, Exported]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    return module, lazytpu.export(module, (torch.ones(1, 3),))


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def dynamic() -> Any:
    batch = {"args": ({0: Dim("batch", min=1, max=9)},)}
    return torch.export.export(Function(double), (torch.ones(4, 3),), dynamic_shapes=batch)


# ---- results


def test_text_is_plain_stablehlo(linear: tuple[nn.Linear, Exported]):
    _, exported = linear
    text = exported.stablehlo
    assert "%weight: tensor<2x3xf32>" in text and "%input: tensor<1x3xf32>" in text
    assert "lazytpu" not in text and "chlo." not in text
    assert exported.custom_calls == {"cpu": (), "tpu": ()}
    with mlir_context():
        assert ir.Module.parse(exported.bytecode()).operation.verify()


@pytest.mark.parametrize("version", [None, "1.0.0", portable.current_version()])
def test_artifact_has_the_requested_version(linear: tuple[nn.Linear, Exported], version: str | None):
    data = linear[1].artifact(version)
    with mlir_context() as context:
        assert "stablehlo.dot_general" in str(stablehlo.deserialize_portable_artifact(context, data))
    assert f"StableHLO_v{version or portable.default_version()}".encode() in data


@pytest.mark.parametrize("version", ["0.1.0", "99.0.0", "new"])
def test_unknown_version_is_refused(linear: tuple[nn.Linear, Exported], version: str):
    with pytest.raises(ValueError, match=rf"expected a version of StableHLO from .* to .*, got '{version}'"):
        linear[1].artifact(version)


def test_jax_function_computes_the_results(linear: tuple[nn.Linear, Exported]):
    module, exported = linear
    weights = {name: weight.detach().numpy() for name, weight in exported.weights.items()}
    result = jax.jit(exported.jax().call)(weights, np.ones((1, 3), np.float32))
    np.testing.assert_allclose(result, module(torch.ones(1, 3)).detach(), rtol=1e-6)


def test_module_on_the_device_is_exported_unchanged():
    x = torch.ones(2, 3, device="tpu")
    module = nn.Linear(3, 2).to("tpu")
    pending = x + 1
    before = lazytpu.metrics()["compiles"]
    exported = lazytpu.export(module, (x,), platforms="cpu", name="on the device")
    assert lazytpu.metrics()["compiles"] - before <= 1  # `pending` runs first
    assert (exported.platforms, exported.name) == (("cpu",), "on_the_device")
    assert repr(exported) == "<on_the_device for cpu: 2 weights (32 bytes), 1 arguments, 1 results>"
    assert pending.tolist() == [[2.0] * 3] * 2
    assert module(x).shape == (2, 2)  # its tensors are unchanged


def test_other_platforms_have_no_program(linear: tuple[nn.Linear, Exported]):
    with pytest.raises(ValueError, match="exported for cpu and tpu, not for 'gpu'"):
        linear[1].text("gpu")


def test_attention_is_lowered_for_the_platform():
    module = Function(nn.functional.scaled_dot_product_attention)
    exported = lazytpu.export(module, (torch.ones(1, 2, 1024, 128, dtype=torch.bfloat16),) * 3, {"is_causal": True})
    assert exported.custom_calls["cpu"] == () and exported.text("cpu") != exported.text("tpu")


def test_varying_sizes_are_specialized():
    exported = lazytpu.export(dynamic(), (torch.ones(7, 3),))
    assert exported.signature.tensors[0].shape == (7, 3)


# ---- random numbers


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.dropout(x, 0.5, training=True), torch.rand(4, device=x.device)


def test_seed_gives_the_numbers_of_the_device(tmp_path: Path):
    torch.tpu.manual_seed(3)
    state = torch.tpu.get_rng_state()
    exported = lazytpu.export(Draws(), (torch.ones(64),), seed=True)
    assert torch.equal(torch.tpu.get_rng_state(), state)
    seed, x = 5 << 32 | 7, torch.ones(64, device="tpu")
    loaded = lazytpu.export.load(exported.save(tmp_path / "draws"))
    torch.tpu.manual_seed(seed)
    want = [t.cpu() for t in Draws()(x)]
    in_jax = exported.jax().call({}, np.array([5, 7], np.uint32), np.ones(64, np.float32))
    for result, loaded_result, tensor in zip(in_jax, loaded.seeded(seed)(x), want, strict=True):
        assert np.asarray(result).tolist() == tensor.tolist() == loaded_result.tolist()
    first, second = loaded(x), loaded(x)
    assert first[1].tolist() != second[1].tolist()
    torch.tpu.manual_seed(1)
    again = loaded(x)[1].tolist()
    torch.tpu.manual_seed(1)
    assert loaded(x)[1].tolist() == again


def test_default_device_does_not_matter(tmp_path: Path):
    with torch.device("tpu"):
        exported = lazytpu.export(Draws(), (torch.ones(64),), seed=True, platforms="cpu")
        results = lazytpu.export.load(exported.save(tmp_path / "draws")).seeded(1)(torch.ones(64))
        torch.tpu.manual_seed(1)
        assert torch.equal(results[0], Draws()(torch.ones(64))[0])


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_seed_has_64_bits(tmp_path: Path, seed: int):
    exported = lazytpu.export(Draws(), (torch.ones(2),), seed=True, platforms="cpu")
    with pytest.raises(ValueError, match="expected a seed from 0"):
        lazytpu.export.load(exported.save(tmp_path / "draws")).seeded(seed)


# ---- errors


def refuse(match: str, error: type[Exception], program: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(error, match=match):
        lazytpu.export(program, args, **options)


def test_random_numbers_need_a_seed_argument():
    match = r"(?s)aten.native_dropout.*test_export.py:\d+ draws random numbers.*eval\(\).*seed=True"
    refuse(match, ValueError, Draws(), torch.ones(2))


def test_varying_sizes_are_refused():
    refuse(r"dimension 0 of 'args_0' \(s\d+\).*lazytpu.export\(program, args", ValueError, dynamic())


def test_sizes_that_guards_exclude_are_refused():
    refuse(r"not among those .* which needs .*<= 9. Give others", ValueError, dynamic(), torch.ones(10, 3))


def test_data_dependent_sizes_are_refused():
    match = r"aten.nonzero.default at .*models.py:\d+: the size of its result.*fixed size"
    refuse(match, ValueError, Function(lambda x: x.nonzero()), torch.ones(3))


def test_reading_a_value_is_refused():
    match = r"aten.item.default at .*models.py:\d+: its result depends on the values"
    refuse(match, ValueError, Function(lambda x: x * x.sum().item()), torch.ones(3))


def test_program_has_to_be_a_module():
    refuse("not function; wrap the function in an nn.Module", TypeError, double, torch.ones(3))
    refuse("not int$", TypeError, 3)


def test_unknown_platform_is_refused():
    refuse("platforms among cpu, tpu, got 'gpu'", ValueError, nn.ReLU(), torch.ones(1), platforms=("cpu", "gpu"))
    refuse(r"got '\(\)'", ValueError, nn.ReLU(), torch.ones(1), platforms=())


def test_op_that_one_platform_lacks_names_the_other():
    module = Function(lambda x: torch.fft.fft(x))
    match = r"(?s)models.py:\d+: .*complex128.*The cpu has it: export with platforms='cpu'"
    refuse(match, NotImplementedError, module, torch.ones(4, dtype=torch.complex128))
    assert lazytpu.export(module, (torch.ones(4, dtype=torch.complex128),), platforms="cpu").needs_x64


def test_op_without_a_rule_is_refused():
    with torch.library._scoped_library("exporting_test", "DEF") as library:
        library.define("strange(Tensor x) -> Tensor")
        library.impl("strange", lambda x: x.clone(), "CPU")
        library.impl("strange", lambda x: torch.empty_like(x), "Meta")
        match = r"(?s)cannot export exporting_test.strange.default at .*models.py:\d+.*no rule"
        refuse(match, NotImplementedError, Function(lambda x: torch.ops.exporting_test.strange(x)), torch.ones(2))


def test_sparse_results_are_refused():
    refuse(
        "'to_sparse' at .*models.py:.* is torch.sparse_coo",
        NotImplementedError,
        Function(torch.Tensor.to_sparse),
        torch.ones(2),
    )


def test_overwritten_buffers_that_share_memory_are_refused():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(4))
            self.register_buffer("b", self.a[:2])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.add_(x)
            return self.b + 1

    refuse(r"'a' and 'b' of the module share memory.*clone\(\)", ValueError, Shared(), torch.ones(4))


def test_results_of_other_types_and_8_bit_floats_are_refused():
    refuse("cannot be 8-bit floats", NotImplementedError, Function(lambda x: x.to(torch.float8_e5m2)), torch.ones(2))
    refuse("dicts with strings as keys.* 1$", TypeError, Function(lambda x: {1: x}), torch.ones(2))


def test_buffer_may_have_the_name_of_an_argument():
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.x.add_(x)
            return x.mul_(2)

    exported = lazytpu.export(Same(), (torch.ones(3),))
    result, weights, inputs = exported.jax().call({"x": np.ones(3, np.float32)}, np.full(3, 2, np.float32))
    assert (result.tolist(), weights["x"].tolist(), inputs["x"].tolist()) == ([4.0] * 3, [3.0] * 3, [4.0] * 3)
