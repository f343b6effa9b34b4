"""Layouts of results that states of other sizes have: derived from the operands', or torch's at each size."""

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
    """0.7 of the size rounded down, which is no quotient that is looked for."""
    return functional.interpolate(x.T.unsqueeze(0), scale_factor=0.7, mode="nearest")


def test_sizes_that_torch_rounds_in_a_way_of_its_own() -> None:
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
    """All layouts are torch's, of which few are asked for."""
    from lazytpu.frontend.recording.growing import INFERENCE

    asked, agrees = list[int](), type(INFERENCE).agrees

    def counted(self, records, numbers):  # type: ignore[no-untyped-def]
        asked.append(len(numbers))
        return agrees(self, records, numbers)

    monkeypatch.setattr(type(INFERENCE), "agrees", counted)
    monkeypatch.setattr(options, "verify_sizes", False)
    for size in (*SHOWN, *LATER):
        x = torch.ones(size, 4)
        given, state = recorded(attended, x.clone())
        assert given == described_as(attended(x)), size
        records = state.records()
        assert agrees(INFERENCE, records, range(len(records))), size
    assert state.sizes.grown and len(records) > 20
    assert asked and max(asked) < len(records) / 2


def test_each_checked_op_is_one() -> None:
    assert all(hasattr(torch.ops.aten, name) for name in CHECKED)


def test_where_torch_says_otherwise_the_record_is_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form of a result that is wrong at some size is never seen."""
    from lazytpu.engine.sizes import growth
    from lazytpu.ir.forms import symbol

    fit, spoiled = growth.fit, list[bool]()

    def wrong(samples, kinds):  # type: ignore[no-untyped-def]
        made = fit(samples, kinds)
        if made is not None and len(samples) == growth.NEEDED:
            size = next(iter(made.varying))
            places = made.varying[size]
            spoiled.append(True)
            made.varying[size] = places[:-1]  # the last integer is the size of the result
            made.varying[symbol("n") // 8 * 8 + 5] = places[-1:]
        return made

    monkeypatch.setattr(growth, "fit", wrong)
    for size in (9, 11, 13, 12, 10, 14, 40, 21):
        x = torch.ones(size, 4).to("tpu")
        lazytpu.mark_step()
        assert x.cumsum(0).shape == (size, 4)
        lazytpu.mark_step()
    assert spoiled
