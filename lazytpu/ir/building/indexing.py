"""Builder methods of reads and writes at run-time indices."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from lazytpu.ir import indexing
from lazytpu.ir.building.core import Core, array_props, flag_prop, integer_prop
from lazytpu.ir.types import int_array, string, type_of


class IndexingMethods(Core):
    def gather(
        self,
        x: SSAValue,
        indices: SSAValue,
        *,
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        slice_sizes: Sequence[int],
        operand_batching_dims: Sequence[int] = (),
        start_indices_batching_dims: Sequence[int] = (),
        indices_are_sorted: bool = False,
    ) -> SSAValue:
        """Slices of x at start indices, which are clamped into bounds; dimension numbers as in StableHLO."""
        lists = {
            "offset_dims": offset_dims,
            "collapsed_slice_dims": collapsed_slice_dims,
            "operand_batching_dims": operand_batching_dims,
            "start_indices_batching_dims": start_indices_batching_dims,
            "start_index_map": start_index_map,
            "slice_sizes": slice_sizes,
        }
        result = indexing.gather_type(type_of(x), type_of(indices), index_vector_dim=index_vector_dim, **lists)
        props: dict[str, Attribute] = array_props(lists)
        props |= {
            "index_vector_dim": integer_prop(index_vector_dim),
            "indices_are_sorted": flag_prop(indices_are_sorted),
        }
        return self.one(indexing.GatherOp, (x, indices), result, props)

    def scatter(
        self,
        x: SSAValue,
        indices: SSAValue,
        updates: SSAValue,
        *,
        kind: str,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        input_batching_dims: Sequence[int] = (),
        scatter_indices_batching_dims: Sequence[int] = (),
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
        rounded: bool = False,
    ) -> SSAValue:
        """x with slices of `updates` set, added, multiplied, ... at indices; slices out of bounds are skipped."""
        lists = {
            "update_window_dims": update_window_dims,
            "inserted_window_dims": inserted_window_dims,
            "input_batching_dims": input_batching_dims,
            "scatter_indices_batching_dims": scatter_indices_batching_dims,
            "scatter_dims_to_operand_dims": scatter_dims_to_operand_dims,
        }
        result = indexing.scatter_type(
            type_of(x), type_of(indices), type_of(updates), kind=kind, index_vector_dim=index_vector_dim, **lists
        )
        props: dict[str, Attribute] = {"kind": string(kind), **array_props(lists)}
        props |= {"index_vector_dim": integer_prop(index_vector_dim), "unique_indices": flag_prop(unique_indices)}
        props |= {"indices_are_sorted": flag_prop(indices_are_sorted), "rounded": flag_prop(rounded)}
        return self.one(indexing.ScatterOp, (x, indices, updates), result, props)

    def dynamic_slice(self, x: SSAValue, starts: Sequence[SSAValue], sizes: Sequence[int]) -> SSAValue:
        """The slice of `sizes` at run-time starts (one 0-d integer for each dimension, clamped)."""
        result = indexing.dynamic_slice_type(type_of(x), [type_of(s) for s in starts], sizes)
        return self.one(indexing.DynamicSliceOp, (x, *starts), result, {"sizes": int_array(sizes)})

    def dynamic_update_slice(self, x: SSAValue, update: SSAValue, starts: Sequence[SSAValue]) -> SSAValue:
        """x with `update` written at run-time starts (one 0-d integer for each dimension, clamped)."""
        result = indexing.dynamic_update_slice_type(type_of(x), type_of(update), [type_of(s) for s in starts])
        return self.one(indexing.DynamicUpdateSliceOp, (x, update, *starts), result)
