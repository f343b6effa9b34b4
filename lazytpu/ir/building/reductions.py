"""Builder methods of reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir import reductions
from lazytpu.ir.building.core import array_props, integer_prop
from lazytpu.ir.building.shape import ShapeMethods
from lazytpu.ir.types import int_array, shape_of, string, type_of


class ReductionMethods(ShapeMethods):
    def reduce(self, kind: str, x: SSAValue, dims: Sequence[int], keepdim: bool = False) -> SSAValue:
        """Reduces over `dims` by add, mul, max, min, and, or; with `keepdim` they stay, with size 1."""
        result = reductions.reduce_type(kind, type_of(x), dims)
        props = {"kind": string(kind), "dims": int_array(dims)}
        reduced = self.one(reductions.ReduceOp, (x,), result, props) if len(dims) else x
        if not keepdim:
            return reduced
        return self.reshape(reduced, [1 if d in dims else size for d, size in enumerate(shape_of(x))])

    def argreduce(self, kind: str, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
        """(values, i64 indices) of the max or min along `dim`, which is removed; NaN wins; of equals, the first."""
        types = reductions.argreduce_types(kind, type_of(x), dim)
        props = {"kind": string(kind), "dim": integer_prop(dim)}
        values, indices = self.op(reductions.ArgreduceOp, (x,), types, props).results
        return values, indices

    def reduce_window(
        self,
        kind: str,
        x: SSAValue,
        window: Sequence[int],
        strides: Sequence[int],
        low: Sequence[int],
        high: Sequence[int],
        base_dilations: Sequence[int] | None = None,
        window_dilations: Sequence[int] | None = None,
    ) -> SSAValue:
        """Reduces a sliding window; each list has one number for each dimension of x."""
        ones = [1] * len(window)
        lists = {
            "window": window,
            "strides": strides,
            "low": low,
            "high": high,
            "base_dilations": ones if base_dilations is None else base_dilations,
            "window_dilations": ones if window_dilations is None else window_dilations,
        }
        result = reductions.reduce_window_type(kind, type_of(x), *lists.values())
        return self.one(reductions.ReduceWindowOp, (x,), result, {"kind": string(kind)} | array_props(lists))

    def cumulative(self, kind: str, x: SSAValue, dim: int) -> SSAValue:
        """Inclusive scan of x along `dim` by add, mul, max or min."""
        result = reductions.cumulative_type(kind, type_of(x), dim)
        return self.one(reductions.CumulativeOp, (x,), result, {"kind": string(kind), "dim": integer_prop(dim)})
