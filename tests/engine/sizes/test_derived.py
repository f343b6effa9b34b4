"""Sizes of results are derived from those of what ops are given, which samples show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import lazytpu
from lazytpu.engine.sizes.derived import fit_derived
from lazytpu.engine.sizes.fitting import Varying, _candidates, fit
from lazytpu.engine.sizes.skeletons import SIZE, Integers, trace_apart
from lazytpu.frontend.recording.growing import INFERENCE
from lazytpu.ir.symbolic import LostSize
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


def derived(*traces: list[Record], apart: bool = False) -> Varying:
    rows, kinds = samples(*traces)
    found = fit_derived(rows, kinds, traces[-1], INFERENCE, apart)
    assert found is not None
    return found


def test_a_sum_that_samples_show_as_a_size_of_its_own() -> None:
    rows, kinds = samples(joined(2, 4), joined(3, 5))
    alone = fit(rows, kinds)
    assert alone is not None
    assert "m+n" not in map(str, alone.varying)
    assert list(map(str, derived(joined(2, 4), joined(3, 5)).varying)) == ["n", "n+2", "2*n+2"]
    assert list(map(str, derived(joined(2, 4), joined(3, 5), apart=True).varying)) == ["n", "m", "m+n"]


def test_sizes_of_results_are_not_fitted() -> None:
    assert list(map(str, derived(joined(4, 8), joined(6, 6)).varying)) == ["n", "m", "m+n"]  # 12 in both


def test_quotients_of_quotients() -> None:
    rows, kinds = samples(halved(56), halved(40), halved(27))  # (n+1)/4, too
    alone = fit(rows, kinds)
    assert alone is not None and "(n+3)/4" not in map(str, alone.varying)
    assert list(map(str, derived(halved(56), halved(40), halved(27)).varying)) == ["n", "(n+1)/2", "(n+3)/4"]


def test_what_does_not_vary_has_no_form() -> None:
    assert not derived(joined(4, 8), joined(4, 8)).varying


def test_a_symbol_that_follows_from_others_is_none() -> None:
    """A view of a result, by the size that this has."""

    def pooled(n: int) -> list[Record]:
        quarter = (n - 5) // 4 + 1
        window = {"self": Operand(0, None), "kernel_size": [5], "stride": [4]}
        admitted, out = ((0, layout(1, 1, n), False),), (layout(1, 1, quarter),)
        pool = Record(torch.ops.aten.avg_pool1d.default, window, out, (1,), {}, admitted, None)
        row = Operand(1, ((quarter,), (1,), 0, torch.float32))
        return [pool, Record(torch.ops.aten.exp.default, {"self": row}, (layout(quarter),), (2,), {}, (), None)]

    found = derived(pooled(57), pooled(94))
    assert list(map(str, found.varying)) == ["n", "(n+3)/4-1"]
    for n in range(5, 100):
        into = Integers([], [])
        trace_apart(pooled(n), into)
        assert found.at({"n": n}) == into.values


def test_where_torch_needs_a_number_samples_decide() -> None:
    def resized(n: int) -> list[Record]:
        given = {"self": Operand(0, None), "output_size": [2 * n], "scales": None}
        admitted = ((0, layout(1, 1, n), False),)
        return [
            Record(torch.ops.aten.upsample_nearest1d.default, given, (layout(1, 1, 2 * n),), (1,), {}, admitted, None)
        ]

    class Refusing(type(INFERENCE)):
        def derived(self, record: Record, layouts: object) -> list[Layout | None]:
            raise LostSize("n")

    rows, kinds = samples(resized(5), resized(9))
    found = fit_derived(rows, kinds, resized(9), Refusing())
    assert found is not None and list(map(str, found.varying)) == ["n", "2*n"]


def test_candidates_are_the_column_in_all_samples() -> None:
    rng = np.random.default_rng(0)
    for samples_ in (3, 4, 6):
        sizes, others = rng.integers(2, 60, samples_), rng.integers(2, 60, samples_)
        columns = {"n": tuple(sizes.tolist()), "m": tuple(others.tolist())}
        for made in (sizes // 2 + 1, 5 - (sizes + 1) // 3, (sizes - 1) // 4 * 3, sizes * others, sizes - others + 2):
            column = tuple(made.tolist())
            found = list(_candidates(column, columns, {}, SIZE))
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            assert all([each.at(row) for row in rows] == list(column) for each in found)
            assert found or samples_ == 3  # of which a multiple of a quotient may be chance
