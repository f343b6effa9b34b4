"""What samples alone leave open, torch says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import lazytpu
from lazytpu import wiring
from lazytpu.engine.sizes.fitting import fit
from lazytpu.engine.sizes.shown import fit_shown
from lazytpu.engine.sizes.skeletons import Integers, trace_apart
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout, row_major


def layout(*shape: int) -> Layout:
    return Layout(torch.float32, shape, row_major(shape))


def joined(n: int, m: int) -> list[Record]:
    """`torch.cat((x, y)) * 2` of n and m elements."""
    both, out = [Operand(0, None), Operand(1, None)], layout(n + m)
    admitted = ((0, layout(n), False), (1, layout(m), False))
    cat = Record(torch.ops.aten.cat.default, {"tensors": both, "dim": 0}, (out,), (2,), {}, admitted, None)
    twice = {"self": Operand(2, None), "other": 2}
    return [cat, Record(torch.ops.aten.mul.Tensor, twice, (out,), (3,), {}, (), None)]


def halved(n: int) -> list[Record]:
    """Every fourth of n elements by two steps, and these rows of two."""
    half, quarter = (n + 1) // 2, ((n + 1) // 2 + 1) // 2
    first = {"self": Operand(0, None), "dim": 0, "index": Operand(1, None)}
    admitted = ((0, layout(n), False), (1, Layout(torch.int64, (half,), (1,)), False))
    chosen = Record(torch.ops.aten.index_select.default, first, (layout(half),), (2,), {}, admitted, None)
    pooled = {"self": Operand(2, ((1, 1, half), (half, half, 1), 0, torch.float32)), "kernel_size": [1], "stride": [2]}
    return [chosen, Record(torch.ops.aten.avg_pool1d.default, pooled, (layout(1, 1, quarter),), (3,), {}, (), None)]


def samples(*traces: Sequence[Record]) -> tuple[list[np.ndarray], np.ndarray]:
    rows = list[np.ndarray]()
    for records in traces:
        into = Integers([], [])
        trace_apart(records, into)
        rows.append(np.array(into.values))
    return rows, np.array(into.kinds)


@pytest.fixture(autouse=True)
def started() -> None:
    torch.zeros(1, device="tpu")
    lazytpu.sync()


def test_a_sum_that_two_samples_show_as_a_size_of_its_own() -> None:
    rows, kinds = samples(joined(2, 4), joined(3, 5))
    alone = fit(rows, kinds, rising=True)
    assert alone is not None
    assert list(map(str, alone.varying)) == ["n", "n+2", "m"]
    found = fit_shown(rows, kinds, joined(2, 4), wiring.start().compiler.inference)
    assert found is not None
    assert list(map(str, found.varying)) == ["n", "n+2", "2*n+2"]


def test_a_form_that_torch_finds_wrong() -> None:
    rows, kinds = samples(joined(4, 8), joined(6, 6))  # their sum is 12 in both
    found = fit_shown(rows, kinds, joined(4, 8), wiring.start().compiler.inference)
    assert found is not None
    assert list(map(str, found.varying)) == ["n", "m", "m+n"]


def test_where_something_is_rounded_down_torch_is_asked_at_each_rest() -> None:
    rows, kinds = samples(halved(56), halved(40), halved(27))  # (n+1)/4, too
    alone = fit(rows, kinds, rising=True)
    assert alone is not None
    assert "(n+3)/4" not in map(str, alone.varying)
    found = fit_shown(rows, kinds, halved(27), wiring.start().compiler.inference)
    assert found is not None
    assert "(n+3)/4" in map(str, found.varying)


def test_of_what_does_not_vary_nothing_is_asked() -> None:
    rows, kinds = samples(joined(4, 8), joined(4, 8))
    found = fit_shown(rows, kinds, joined(4, 8), wiring.start().compiler.inference)
    assert found is not None
    assert not found.varying
