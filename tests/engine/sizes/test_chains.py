"""Layouts of results in derived states: computed from the operands, or inferred by torch at each size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import lazytpu
from lazytpu.engine.sizes.chains import CHECKED
from lazytpu.options import options
from tests.engine.sizes.test_growth import described_as, recorded

pytestmark = pytest.mark.usefixtures("bucketed", "fresh_traces")
SHOWN, LATER = (9, 11, 13), (2, 3, 4, 7, 16, 17, 21, 40, 33, 100, 14)


def shrunk(x: Tensor) -> object:
    """Interpolate to 0.7 of the size rounded down, a quotient that fitting does not consider."""
    return functional.interpolate(x.T.unsqueeze(0), scale_factor=0.7, mode="nearest")


def test_sizes_with_floating_point_rounding_equal_torchs() -> None:
    for size in (10, 20, 30, *range(2, 60)):
        x = torch.ones(size, 4)
        assert recorded(shrunk, x)[0] == described_as(shrunk(x)), size


def attended(x: Tensor) -> object:
    x.requires_grad_()
    y = functional.layer_norm(x, (4,)) @ x.T
    z = torch.cat([y.softmax(-1), y.log_softmax(-1)]) + functional.gelu(torch.cat([y, y]))
    w = torch.stack([z, z.mul(2)]).sum((0, 2), keepdim=True)
    torch.bmm(z[None], z.T[None]).sum().add(w.mean(1).sum()).backward()
    return w, x.grad


def test_most_records_of_a_step_are_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layouts equal torch's, although torch infers only a few."""
    from lazytpu.frontend.recording.growing import INFERENCE

    asked, agrees = list[int](), type(INFERENCE).agrees

    def counted(self, records, numbers):  # type: ignore[no-untyped-def]
        asked.append(len(numbers))
        return agrees(self, records, numbers)

    monkeypatch.setattr(type(INFERENCE), "agrees", counted)
    monkeypatch.setattr(options, "verify_sizes", False)
    for size in (*SHOWN, *LATER):
        x = torch.ones(size, 4)
        layouts, state = recorded(attended, x.clone())
        assert layouts == described_as(attended(x)), size
        records = state.records()
        assert agrees(INFERENCE, records, range(len(records))), size
    assert state.sizes.grown and len(records) > 20
    assert asked and max(asked) < len(records) / 2


def test_checked_ops_exist() -> None:
    assert all(hasattr(torch.ops.aten, name) for name in CHECKED)


def test_record_is_inferred_when_torch_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong size expression of a result never reaches a recorded layout."""
    from lazytpu.engine.sizes import chains
    from lazytpu.engine.sizes.fitting import Varying
    from lazytpu.ir.forms import symbol

    chain, spoiled = chains.Chain.__init__, list[bool]()

    def wrong(self, states, varying, sizes, inference):  # type: ignore[no-untyped-def]
        *forms, size, width = varying.forms  # the last two integers are the sizes of the result
        assert size == symbol("n") and width.number == 4
        spoiled.append(True)
        forms = [*forms, symbol("n") // 64 * 64 + sizes["n"] - sizes["n"] // 64 * 64, width]
        chain(self, states, Varying(forms, varying.symbols), sizes, inference)

    monkeypatch.setattr(chains.Chain, "__init__", wrong)
    for size in (9, 11, 13, 12, 10, 14, 40, 21):
        x = torch.ones(size, 4).to("tpu")
        lazytpu.mark_step()
        assert x.cumsum(0).shape == (size, 4)
        lazytpu.mark_step()
    assert spoiled
