"""Gathers and scatters: indices are clamped at the true size, or slices dropped there, and padding writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from xdsl.ir import SSAValue

from lazytpu.ir import indexing as ops
from lazytpu.ir.base import FALSE, integer
from lazytpu.ir.forms import Form
from lazytpu.ir.reductions import identity
from lazytpu.ir.types import bitwidth, dtype_of, ints, is_float, is_unsigned, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, contiguous, merged, sized
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule


@rule(ops.GatherOp)
def gather(w: Walk, op: ops.GatherOp) -> Sequence[Padded]:
    """Clamp start indices at true sizes. The result has the batch dimensions of the indices and the dimensions of the
    slices."""
    dims, indices = w.dims(op.operand), w.dims(op.start_indices)
    at, batching = integer(op.index_vector_dim), ints(op.operand_batching_dims)
    _check_vectors(indices, at)
    together = {
        j: merged(dims[i], indices[j]) for i, j in zip(batching, ints(op.start_indices_batching_dims), strict=True)
    }
    sizes = ints(op.slice_sizes)
    slices = w.forms(op, "slice_sizes", sizes)
    lasts: dict[int, Form] = {}
    window: list[Dim] = []
    mapped = ints(op.start_index_map)
    for i, (dim, size, true) in enumerate(zip(dims, sizes, slices, strict=True)):
        last = _last(w, dim, size, true, i in mapped, i in batching)
        if last is not None and i in mapped:
            lasts[mapped.index(i)] = last
        if i not in (*batching, *ints(op.collapsed_slice_dims)):
            window.append(dim if size == dim.size and true == dim.total else w.dim(size, true))
    if lasts:
        op.operands[1] = _at_most(w, op.start_indices, at, lasts)
        op.properties["indices_are_sorted"] = FALSE
    batch = [together.get(j, dim) for j, dim in enumerate(indices) if j != at]
    offsets = ints(op.offset_dims)
    rank = len(shape_of(op.results[0]))
    return [Padded(tuple(window.pop(0) if i in offsets else batch.pop(0) for i in range(rank)))]


def _check_vectors(indices: Sequence[Dim], at: int) -> None:
    """Raise Refused if the components of index vectors are a padded dimension."""
    if at < len(indices) and indices[at].padded:
        raise Refused("the components of index vectors are a sized dimension")


def _last(w: Walk, dim: Dim, size: int, true: Form, indexed: bool, batching: bool) -> Form | None:
    """Return the last start of a slice of `true` elements (`size` at the bound) if it depends on run-time sizes, else
    None."""
    if batching or (size == dim.size and true == dim.total):
        return None
    last = dim.total - true
    if not dim.padded and last.number is not None:
        return None
    contiguous(dim)
    low, high = last.range(w.shared.symbols)
    if low < 0 and true.number is None:
        raise Refused(f"a slice of {true} elements of a dimension of {dim.total}")
    if indexed and high > dim.size - size:
        raise Refused(f"a slice of {true} elements, at most {size}, has no room at the end of the {dim.size} in memory")
    return last


def _component(w: Walk, indices: SSAValue, at: int, number: int) -> SSAValue:
    """Return an i1 of the shape of the indices: the elements that are component `number` of their vector."""
    b, shape = w.builder, shape_of(indices)
    if at == len(shape):
        return b.constant(True, "i1", shape)
    return b.compare("EQ", b.iota("i32", shape, at), b.constant(number, "i32", shape))


def _at_most(w: Walk, indices: SSAValue, at: int, lasts: Mapping[int, Form]) -> SSAValue:
    """Return index vectors with components clamped to the last starts."""
    wide = w.wide(indices)
    for number, last in lasts.items():
        wide = w.builder.select(_component(w, wide, at, number), w.at_most(wide, last), wide)
    return wide


@rule(ops.ScatterOp)
def scatter(w: Walk, op: ops.ScatterOp) -> Sequence[Padded]:
    """Move the updates of padding out of bounds, where they are dropped."""
    dims, indices, updates = list(w.dims(op.input)), w.dims(op.indices), w.dims(op.updates)
    at, batching = integer(op.index_vector_dim), ints(op.input_batching_dims)
    _check_vectors(indices, at)
    inserted, mapped = ints(op.inserted_window_dims), ints(op.scatter_dims_to_operand_dims)
    in_updates = ints(op.update_window_dims)
    outer = [i for i in range(len(updates)) if i not in in_updates]
    batch = [j for j in range(len(indices)) if j != at]
    padded = {j: merged(indices[j], updates[i]) for j, i in zip(batch, outer, strict=True)}
    sliced = [i for i in range(len(dims)) if i not in (*inserted, *batching)]
    windows = dict(zip(sliced, (updates[i] for i in in_updates), strict=True))
    for i, window_dim in windows.items():  # an input of equal elements adopts the padding of the slices
        if dims[i].free and window_dim.size == dims[i].size and window_dim.total == dims[i].total:
            dims[i] = window_dim
    for i, j in zip(batching, ints(op.scatter_indices_batching_dims), strict=True):
        dims[i] = merged(merged(dims[i], indices[j]), padded[j])
    _mask_window(w, op, [dims[i] for i in sliced], any(i in mapped for i in sliced))
    lasts: dict[int, Form] = {}
    # Find starts to be checked at the true size.
    for i in mapped:
        slice_ = windows.get(i, sized(1))
        last = _last(w, dims[i], slice_.size, slice_.total, True, False)
        if last is not None and slice_.size > 1:  # a single element after the true ones is written into padding
            lasts[mapped.index(i)] = last
    # Move updates of padding out of bounds.
    outside = _left_out(w, op, at, padded, lasts)
    if outside is not None:
        if not mapped:
            raise Refused("an update of a sized dimension is written at no index")
        b, wide = w.builder, w.wide(op.indices)
        never = (1 << bitwidth(dtype_of(wide))) - 1 if is_unsigned(dtype_of(wide)) else -1
        op.operands[1] = b.select(outside, b.constant(never, dtype_of(wide), shape_of(wide)), wide)
        op.properties |= {"unique_indices": FALSE, "indices_are_sorted": FALSE}
        w.shared.masks += 1
    return [Padded(tuple(dim.settled for dim in dims))]


def _mask_window(w: Walk, op: ops.ScatterOp, sliced: Sequence[Dim], moved: bool) -> None:
    """Set padding of an update's window to the identity of the scatter where true input elements lie under it.

    `sliced` are the input dimensions under the window. `moved` says whether slices start at run-time indices along
    them.
    """
    updates = w.dims(op.updates)
    under = [
        i
        for i, dim in zip(ints(op.update_window_dims), sliced, strict=True)
        if updates[i].padded and updates[i].factors != dim.factors
    ]
    if not under:
        return
    if op.kind.data == "set":
        raise Refused("a slice with padding is written over elements that stay where the padding is")
    if moved:
        raise Refused("slices with padding are written at run-time starts along the padding")
    dtype = dtype_of(op.input)
    keeps_sign = op.kind.data == "add" and is_float(dtype)  # -0.0 + 0.0 is 0.0
    w.mask_operand(op, 2, under, -0.0 if keeps_sign else identity(op.kind.data, dtype))


def _left_out(
    w: Walk, op: ops.ScatterOp, at: int, padded: Mapping[int, Dim], lasts: Mapping[int, Form]
) -> SSAValue | None:
    """Return an i1 of the shape of the indices: vectors of padded updates, and components after the last start at this
    size."""
    b, wide = w.builder, w.wide(op.indices)
    dims = [padded.get(j, dim) for j, dim in enumerate(w.dims(op.indices))]
    inside = w.mask(dims, padded)
    outside = [] if inside is None else [b.not_(inside)]
    for number, last in lasts.items():
        limit = w.filled(last, shape_of(wide), dtype_of(wide))
        outside.append(b.and_(b.compare("GT", wide, limit), _component(w, wide, at, number)))
    return reduce(b.or_, outside) if outside else None
