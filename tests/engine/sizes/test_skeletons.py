"""A record is rebuilt from its structure and integers, and size expressions compute the integers at new sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lazytpu.engine.sizes.derived import fit_derived
from lazytpu.engine.sizes.fitting import Fitting
from lazytpu.engine.sizes.skeletons import (
    COUNT,
    OTHER,
    SIZE,
    Integers,
    trace_apart,
    trace_together,
    with_parts,
)
from lazytpu.engine.sizes.strides import dense_order
from lazytpu.frontend.recording.growing import INFERENCE
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout, row_major
from tests.fitted import fit


def layout(*shape: int) -> Layout:
    return Layout(torch.float32, shape, row_major(shape))


def shifted(n: int, **arguments: Any) -> Record:
    """The record of `x[:, :-1].sum(dim=-1)` for 4 rows of n elements."""
    view = (4, n - 1), (n, 1), 0, torch.float32
    return Record(
        torch.ops.aten.sum.dim_IntList,
        {"self": Operand(0, view), "dim": (-1,), "keepdim": False, "scale": 0.5, **arguments},
        (layout(4),),
        (1,),
        {},
        ((0, layout(4, n), False),),
        None,
    )


def parts(record: Record) -> tuple[Any, Integers]:
    structure = trace_apart([record], into := Integers([], []))
    return tuple(structure), into


def test_records_of_different_sizes_share_a_structure() -> None:
    (small, small_integers), (large, large_integers) = parts(shifted(6)), parts(shifted(9))
    assert small == large
    assert small_integers.kinds == large_integers.kinds
    assert small_integers.values != large_integers.values
    (rebuilt,) = trace_together([shifted(6)], iter(large_integers.values))
    assert rebuilt.arguments == shifted(9).arguments
    assert [o.key for o in rebuilt.outs if o is not None] == [o.key for o in shifted(9).outs if o is not None]
    assert [entry[1].key for entry in rebuilt.admitted] == [entry[1].key for entry in shifted(9).admitted]


def read(n: int, of: int) -> Record:
    """The record of `x[:, :n].sum()` for 4 rows of `of` elements, or of `x.sum()` for n == of."""
    view = None if n == of else ((4, n), (of, 1), 0, torch.float32)
    admitted = ((0, layout(4, of), False),)
    return Record(torch.ops.aten.sum.default, {"self": Operand(0, view)}, (layout(),), (1,), {}, admitted, None)


def test_full_tensor_and_its_prefix_share_a_structure() -> None:
    full_integers, part_integers, unrelated = Integers([], []), Integers([], []), Integers([], [])
    assert trace_apart([read(9, 9)], full_integers) == trace_apart([read(7, 9)], part_integers)
    assert trace_apart([shifted(9)], unrelated) != trace_apart([read(9, 9)], Integers([], []))
    assert with_parts([read(7, 9)], [read(9, 9)])[0].arguments == read(7, 9).arguments
    (full_view,) = with_parts([read(9, 9)], [read(7, 8)])
    assert full_view.arguments == {"self": Operand(0, ((4, 9), (9, 1), 0, torch.float32))}
    assert trace_together([full_view], iter(part_integers.values))[0].arguments == read(7, 9).arguments
    assert trace_together([read(7, 9)], iter([4, 12, 4, 5, 0, 0]))[0].arguments == read(5, 12).arguments
    assert trace_together([read(9, 9)], iter(full_integers.values))[0].arguments == read(9, 9).arguments


def test_operands_without_a_counterpart_are_unchanged() -> None:
    """Records matched by op, line and kinds of integers may have different operands."""

    def picked(arguments: dict[str, Any]) -> Record:
        admitted = tuple((slot, layout(4, 9), False) for slot in range(2))
        return Record(torch.ops.aten.sum.default, arguments, (layout(),), (2,), {}, admitted, None)

    view = Operand(1, ((4, 7), (9, 1), 0, torch.float32))
    for mine, theirs in (
        ({"weight": Operand(0, None)}, {"weight": None}),
        ({"weight": Operand(0, None)}, {}),
        ({"self": [Operand(0, None), Operand(1, None)]}, {"self": [view]}),
        ({"self": [Operand(0, None), None]}, {"self": None}),
    ):
        assert with_parts([picked(mine)], [picked(theirs)])[0].arguments == mine


def begun(begin: int, of: int) -> Record:
    """The record of `x[:, begin : begin + 3].sum()` for 4 rows of `of` elements."""
    admitted = ((0, layout(4, of), False),)
    view = Operand(0, ((4, 3), (of, 1), begin, torch.float32))
    return Record(torch.ops.aten.sum.default, {"self": view}, (layout(),), (1,), {}, admitted, None)


def test_slices_at_all_offsets_share_a_structure() -> None:
    first, second = Integers([], []), Integers([], [])
    assert trace_apart([begun(0, 9)], first) == trace_apart([begun(5, 12)], second)
    assert trace_together([begun(0, 9)], iter(second.values))[0].arguments == begun(5, 12).arguments
    assert trace_apart([begun(5, 12)], Integers([], [])) == trace_apart([read(9, 9)], Integers([], []))
    rows = [(begin, of) for begin, of in ((0, 9), (5, 12), (2, 30))]
    samples = list[np.ndarray]()
    for begin, of in rows:
        into = Integers([], [])
        trace_apart([begun(begin, of)], into)
        samples.append(np.array(into.values))
    varying = fit(samples, np.array(into.kinds))
    assert varying is not None
    assert list(map(str, varying.varying)) == ["n", "m"]
    assert varying.solved(samples[0]) == {"n": 9, "m": 0}


def test_strides_of_single_rows_are_ignored() -> None:
    def doubled(step: int, out_step: int) -> Record:
        """The record of `x[:1] * 2` for a transposed tensor, with a result of one row."""
        admitted = ((0, layout(5, 4), False),)
        row = Operand(0, ((1, 4), (step, 1), 8, torch.float32))
        out = Layout(torch.float32, (1, 4), (out_step, 1))
        return Record(torch.ops.aten.mul.Tensor, {"self": row, "other": 2}, (out,), (1,), {}, admitted, None)

    first, second = Integers([], []), Integers([], [])
    assert trace_apart([doubled(4, 4)], first) == trace_apart([doubled(20, 12)], second)
    assert first == second
    (rebuilt,) = trace_together([doubled(20, 12)], iter(first.values))
    assert rebuilt.arguments == doubled(4, 4).arguments
    assert [out.key for out in rebuilt.outs if out is not None] == [layout(1, 4).key]


def test_full_tensor_may_be_a_slice_at_other_sizes() -> None:
    samples, records = list[np.ndarray](), [read(9, 9)]
    for table in (9, 12, 15):
        records = with_parts(records, [read(9, table)])
        trace_apart([read(9, table)], into := Integers([], []))
        samples.append(np.array(into.values))
    varying = fit_derived(samples, np.array(into.kinds), records, INFERENCE)
    assert varying is not None
    assert trace_together(records, iter(varying.at({"n": 14})))[0].arguments == read(9, 14).arguments


def test_sizes_0_and_1_are_part_of_the_structure() -> None:
    assert len({parts(shifted(n))[0] for n in (2, 3, 9)}) == 2  # n - 1 == 1 has another structure


def test_sums_are_preferred_to_differences() -> None:
    samples = [np.array([m, m + k, k]) for m, k in ((7, 2), (9, 2), (12, 3), (16, 2))]
    varying = fit(samples, np.array([SIZE, SIZE, SIZE]))
    assert varying is not None
    assert varying.at(varying.solved(np.array([20, 25, 5])) or {}) == [20, 25, 5]
    assert not any("-" in str(size) for size in varying.varying)


def test_other_arguments_are_part_of_the_structure() -> None:
    skeleton, _ = parts(shifted(6))
    for change in ({"keepdim": True}, {"scale": 1.0}, {"scale": -0.5}, {"dim": [-1]}, {"dim": (-1, 0)}):
        assert parts(shifted(6, **change))[0] != skeleton, change
    nan = float("nan")
    assert parts(shifted(6, scale=nan))[0] == parts(shifted(6, scale=float("nan")))[0]
    assert parts(shifted(6, scale=0.0))[0] != parts(shifted(6, scale=-0.0))[0]


def test_dense_order_sorts_dims_by_stride() -> None:
    assert dense_order((2, 3, 4), (12, 4, 1)) == (0, 1, 2)
    assert dense_order((2, 3, 4), (1, 8, 2)) == (1, 2, 0)
    assert dense_order((2, 3), (6, 1)) is None


def columns(*rows: tuple[int, ...]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def forms(rows: list[np.ndarray], kinds: tuple[int, ...]) -> list[str] | None:
    fitted = fit(rows, np.array(kinds, np.int8))
    if fitted is None:
        return None
    named = {int(i): str(form) for form, positions in fitted.varying.items() for i in positions}
    assert all(fitted.solved(row) is not None for row in rows)
    assert all(fitted.at(fitted.solved(row) or {}) == row.tolist() for row in rows)
    return [named.get(i, "_") for i in range(len(rows[0]))]


def test_expressions_are_fitted_to_two_samples() -> None:
    rows = columns((5, 7, 20, 6, 25, 4, -3), (6, 7, 24, 7, 36, 5, -4))
    sizes = True, True, True, True, True, False, False
    assert forms(rows, sizes) == ["n", "_", "4*n", "n+1", "n*n", "n-1", "-n+2"]


def test_independent_sizes_are_two_symbols() -> None:
    rows = columns((4, 10, 40), (3, 17, 51))
    assert forms(rows, (True, True, True)) == ["n", "m", "m*n"]


def test_later_sample_rejects_a_coincidental_expression() -> None:
    first = fit(columns((5, 8), (6, 9)), np.array([SIZE, SIZE]))
    assert first is not None
    assert first.solved(np.array([7, 20])) is None
    assert forms(columns((5, 8), (6, 9), (7, 20)), (True, True)) == ["n", "m"]


def test_flattened_size_is_a_product_at_any_position() -> None:
    rows = columns((100, 10, 10), (400, 20, 20))
    assert forms(rows, (SIZE, SIZE, SIZE)) == ["n*n", "n", "n"]


def test_half_of_a_size_is_a_quotient_at_any_position() -> None:
    rows = columns((5, 10), (13, 25), (15, 30))
    assert forms(rows, (SIZE, SIZE)) == ["(n+1)/2", "n"]


def test_concatenated_size_is_a_sum() -> None:
    rows = columns((4, 10, 14), (3, 17, 20))
    assert forms(rows, (SIZE, SIZE, SIZE)) == ["n", "m", "m+n"]


def test_sum_with_a_constant_and_its_stride() -> None:
    rows = columns((12, 5, 16, 256), (15, 4, 18, 288))
    assert forms(rows, (SIZE, SIZE, SIZE, OTHER)) == ["n", "m", "m+n-1", "16*m+16*n-16"]


def test_count_is_a_symbol_even_if_an_expression_fits() -> None:
    rows = columns((5, 10, 5), (10, 20, 10))
    assert forms(rows, (COUNT, SIZE, SIZE)) == ["n", "2*n", "n"]
    rows = columns((5, 10, 5), (10, 20, 10), (14, 30, 14))
    assert forms(rows, (COUNT, SIZE, SIZE)) == ["n", "m", "n"]


def test_sizes_zero_and_one_are_no_symbols() -> None:
    assert fit(columns((2, 4), (1, 4)), np.array([SIZE, SIZE])) is None
    assert fit(columns((9, 4), (0, 4)), np.array([SIZE, SIZE])) is None


def test_single_element_sample_shows_varying_sizes() -> None:
    varying = fit(columns((1, 4), (2, 4)), np.array([SIZE, SIZE]))
    assert varying is not None and varying.symbols == {"n": 0}


def test_size_not_derived_from_operands_is_a_symbol() -> None:
    table, kinds = np.stack(columns((4, 6, 10, 8), (5, 7, 12, 10))), np.array([SIZE] * 4)
    unrelated, following = Fitting(table, kinds), Fitting(table, kinds, follows={(10, 12)})
    assert [str(unrelated.choose(at)) for at in range(4)] == ["n", "n+2", "m", "2*n"]
    assert [str(following.choose(at)) for at in (0, 1, 3)] == ["n", "m", "2*n"]  # a product is accepted


def test_argument_with_the_size_of_a_part_is_no_sum_of_other_parts() -> None:
    """The size of `zeros` may be the only hint of a part that comes later. Two samples fit a sum by chance."""
    table, kinds = np.array([[61, 78, 51, 51], [93, 47, 52, 52]]), np.array([SIZE, SIZE, OTHER, SIZE])
    together, parts = Fitting(table, kinds), Fitting(table, kinds, parts=True)
    assert [str(together.choose(position)) for position in range(4)] == ["n", "m", "m+n-88", "m+n-88"]
    assert [str(parts.choose(position)) for position in range(4)] == ["n", "m", "k", "k"]


def test_varying_integer_without_a_size_is_no_symbol() -> None:
    assert fit(columns((2, 4), (3, 4)), np.array([OTHER, SIZE])) is None


def test_quotients_need_three_samples() -> None:
    rows = columns((8, 4), (11, 6), (15, 8))
    assert forms(rows, (True, True)) == ["n", "(n+1)/2"]


def test_no_size_decreases_when_a_symbol_increases() -> None:
    assert forms(columns((4, 20), (6, 18)), (SIZE, SIZE)) == ["n", "m"]


def test_difference_with_a_constant() -> None:
    rows = columns((13, 8, 1), (13, 9, 2), (18, 13, 1))
    assert forms(rows, (SIZE, SIZE, OTHER)) == ["n", "m", "m-n+6"]


def test_empty_tensor_is_not_rewritten_as_a_view() -> None:
    """An empty tensor has no element to view, so a full view would have other integers."""

    def summed(operand: Operand, n: int) -> Record:
        admitted = ((0, layout(n, 4), False),)
        return Record(torch.ops.aten.sum.default, {"self": operand}, (layout(),), (1,), {}, admitted, None)

    view = Operand(0, ((3, 4), (4, 1), 0, torch.float32))
    for n in (0, 1, 2):
        records, integers = [summed(Operand(0, None), n)], Integers([], [])
        assert trace_apart(with_parts(records, [summed(view, 9)]), integers) == trace_apart(
            records, expected := Integers([], [])
        )
        assert integers.values == expected.values
