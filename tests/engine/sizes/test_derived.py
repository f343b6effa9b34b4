"""Size expressions of results are derived from the observed sizes of the operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import lazytpu
from lazytpu.engine.sizes.derived import fit_derived, fit_guessed
from lazytpu.engine.sizes.fitting import Varying, _candidates
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.skeletons import SIZE, Integers, trace_apart
from lazytpu.frontend.recording.growing import INFERENCE
from lazytpu.ir.forms import symbol
from lazytpu.ir.symbolic import LostSize
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout, row_major
from tests.fitted import fit


def layout(*shape: int) -> Layout:
    return Layout(torch.float32, shape, row_major(shape))


def joined(n: int, m: int) -> list[Record]:
    """The records of `torch.cat((x, y)) * 2` for n and m elements."""
    operands, out = [Operand(0, None), Operand(1, None)], layout(n + m)
    admitted = ((0, layout(n), False), (1, layout(m), False))
    cat = Record(torch.ops.aten.cat.default, {"tensors": operands, "dim": 0}, (out,), (2,), {}, admitted, None)
    twice = {"self": Operand(2, None), "other": 2}
    return [cat, Record(torch.ops.aten.mul.Tensor, twice, (out,), (3,), {}, (), None)]


def halved(n: int) -> list[Record]:
    """The records of two steps that each keep every second of n elements."""
    half, quarter = (n + 1) // 2, ((n + 1) // 2 + 1) // 2
    first = {"self": Operand(0, None), "dim": 0, "index": Operand(1, None)}
    admitted = ((0, layout(n), False), (1, Layout(torch.int64, (half,), (1,)), False))
    chosen = Record(torch.ops.aten.index_select.default, first, (layout(half),), (2,), {}, admitted, None)
    pooled = {"self": Operand(2, ((1, 1, half), (half, half, 1), 0, torch.float32)), "kernel_size": [1], "stride": [2]}
    return [chosen, Record(torch.ops.aten.avg_pool1d.default, pooled, (layout(1, 1, quarter),), (3,), {}, (), None)]


def numbered(n: int, m: int) -> list[Record]:
    """The records of `x * 2` and `torch.arange(m)` for n elements."""
    first = {"self": Operand(0, None), "other": 2}
    twice = Record(torch.ops.aten.mul.Tensor, first, (layout(n),), (1,), {}, ((0, layout(n), False),), None)
    counts = Layout(torch.int64, (m,), (1,))
    return [twice, Record(torch.ops.aten.arange.default, {"end": m}, (counts,), (2,), {}, (), None)]


def joined_behind(length: int, n: int) -> list[Record]:
    """The records of `y * 2` for a length, and of `torch.cat((x, one))[None] * 2` for n elements."""
    twice = {"self": Operand(0, None), "other": 2}
    whole = {"self": Operand(4, ((1, n + 1), (n + 1, 1), 0, torch.float32)), "other": 2}
    admitted = (2, layout(n), False), (3, layout(1), False)
    mul, cat = torch.ops.aten.mul.Tensor, torch.ops.aten.cat.default
    return [
        Record(mul, twice, (layout(length),), (1,), {}, ((0, layout(length), False),), None),
        Record(cat, {"tensors": [Operand(2, None), Operand(3, None)]}, (layout(n + 1),), (4,), {}, admitted, None),
        Record(mul, whole, (layout(1, n + 1),), (5,), {}, (), None),
    ]


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
    varying = fit_derived(rows, kinds, traces[-1], INFERENCE, apart)
    assert varying is not None
    return varying


def test_sum_of_sizes_is_derived_when_samples_are_ambiguous() -> None:
    rows, kinds = samples(joined(2, 4), joined(3, 5))
    alone = fit(rows, kinds)
    assert alone is not None
    assert "m+n" not in map(str, alone.varying)
    assert list(map(str, derived(joined(2, 4), joined(3, 5)).varying)) == ["n", "n+2", "2*n+2"]
    assert list(map(str, derived(joined(2, 4), joined(3, 5), apart=True).varying)) == ["n", "m", "m+n"]


def test_sizes_of_results_are_not_fitted() -> None:
    assert list(map(str, derived(joined(4, 8), joined(6, 6)).varying)) == [
        "n",
        "m",
        "m+n",
    ]  # the size of the result is 12 in both


def test_quotient_of_a_quotient_is_derived() -> None:
    rows, kinds = samples(halved(56), halved(40), halved(27))  # (n+1)/4, too
    alone = fit(rows, kinds)
    assert alone is not None and "(n+3)/4" not in map(str, alone.varying)
    assert list(map(str, derived(halved(56), halved(40), halved(27)).varying)) == ["n", "(n+1)/2", "(n+3)/4"]


def test_size_that_an_argument_gives_does_not_fall() -> None:
    traces = [numbered(n, m) for n, m in ((21, 23), (20, 24), (19, 24))]
    assert list(map(str, derived(*traces).varying)) == ["n", "m"]


def test_argument_has_the_expression_of_the_nearest_result() -> None:
    records = joined_behind(24, 23)
    trace_apart(records, into := Integers([], []))
    length, n = (position for position, slot, _ in into.inputs if slot in (0, 2))
    told = {length: symbol("n"), n: symbol("m")}
    guesses = Guesses(into, {"n": length, "m": n}, told)
    varying = fit_guessed(guesses, records, INFERENCE)
    assert varying is not None
    view = into.ends[1] + 1
    assert str(varying.forms[view]) == str(varying.forms[-1]) == "m+1"
    assert str(varying.forms[into.ends[0] - 1]) == "n"


def test_constant_sizes_have_no_expression() -> None:
    assert not derived(joined(4, 8), joined(4, 8)).varying


def test_dependent_size_is_no_symbol() -> None:
    """The size of a view of a result follows from the size of the result."""

    def pooled(n: int) -> list[Record]:
        quarter = (n - 5) // 4 + 1
        window = {"self": Operand(0, None), "kernel_size": [5], "stride": [4]}
        admitted, out = ((0, layout(1, 1, n), False),), (layout(1, 1, quarter),)
        pool = Record(torch.ops.aten.avg_pool1d.default, window, out, (1,), {}, admitted, None)
        row = Operand(1, ((quarter,), (1,), 0, torch.float32))
        return [pool, Record(torch.ops.aten.exp.default, {"self": row}, (layout(quarter),), (2,), {}, (), None)]

    family = derived(pooled(57), pooled(94))
    assert list(map(str, family.varying)) == ["n", "(n+3)/4-1"]
    for n in range(5, 100):
        into = Integers([], [])
        trace_apart(pooled(n), into)
        assert family.at({"n": n}) == into.values


def test_samples_decide_where_torch_needs_an_integer() -> None:
    def resized(n: int) -> list[Record]:
        arguments = {"self": Operand(0, None), "output_size": [2 * n], "scales": None}
        admitted = ((0, layout(1, 1, n), False),)
        return [
            Record(
                torch.ops.aten.upsample_nearest1d.default, arguments, (layout(1, 1, 2 * n),), (1,), {}, admitted, None
            )
        ]

    class Refusing(type(INFERENCE)):
        def derived(self, record: Record, layouts: object) -> list[Layout | None]:
            raise LostSize("n")

    rows, kinds = samples(resized(5), resized(9))
    varying = fit_derived(rows, kinds, resized(9), Refusing())
    assert varying is not None and list(map(str, varying.varying)) == ["n", "2*n"]


def test_candidates_reproduce_all_samples() -> None:
    rng = np.random.default_rng(0)
    for samples_ in (3, 4, 6):
        sizes, counts = rng.integers(2, 60, samples_), rng.integers(2, 60, samples_)
        columns = {"n": tuple(sizes.tolist()), "m": tuple(counts.tolist())}
        for results in (sizes // 2 + 1, 5 - (sizes + 1) // 3, (sizes - 1) // 4 * 3, sizes * counts, sizes - counts + 2):
            column = tuple(results.tolist())
            candidates = list(_candidates(column, columns, {}, SIZE))
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            assert all([candidate.at(row) for row in rows] == list(column) for candidate in candidates)
            assert candidates or samples_ == 3  # three samples may be fewer than an expression needs
