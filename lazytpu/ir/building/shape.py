"""Builder methods of ops that move elements."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir import shape as rules
from lazytpu.ir.building.core import Core, integer_prop
from lazytpu.ir.types import int_array, same_type, shape_of, type_of


class ShapeMethods(Core):
    def broadcast_in_dim(self, x: SSAValue, shape: Sequence[int], dims: Sequence[int]) -> SSAValue:
        """Dimension i of x becomes dimension dims[i] of the result; x is repeated along all others."""
        result = rules.broadcast_type(type_of(x), shape, dims)
        return self.one(rules.BroadcastInDimOp, (x,), result, {"dims": int_array(dims)})

    def broadcast_to(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """x broadcast to `shape` as in numpy, dimensions aligned at the right; x itself if it has that shape."""
        source = shape_of(x)
        if not self.identities and source == tuple(shape):
            return x
        return self.broadcast_in_dim(x, shape, range(len(shape) - len(source), len(shape)))

    def reshape(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The same elements with another shape; x itself if it has that shape."""
        if not self.identities and shape_of(x) == tuple(shape):
            return x
        return self.one(rules.ReshapeOp, (x,), rules.reshape_type(type_of(x), shape))

    def transpose(self, x: SSAValue, permutation: Sequence[int]) -> SSAValue:
        """Dimension i of the result is dimension permutation[i] of x; x itself for the identity."""
        if tuple(permutation) == tuple(range(len(shape_of(x)))):
            return x
        result = rules.transpose_type(type_of(x), permutation)
        return self.one(rules.TransposeOp, (x,), result, {"permutation": int_array(permutation)})

    def slice(
        self, x: SSAValue, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
    ) -> SSAValue:
        """x[starts[i] : limits[i] : strides[i], ...]; x itself if the slice covers it."""
        strides = [1] * len(starts) if strides is None else strides
        result = rules.slice_type(type_of(x), starts, limits, strides)
        if not self.identities and same_type(result, type_of(x)):
            return x
        props = {"starts": int_array(starts), "limits": int_array(limits), "strides": int_array(strides)}
        return self.one(rules.SliceOp, (x,), result, props)

    def pad(
        self,
        x: SSAValue,
        value: SSAValue,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> SSAValue:
        """x with `low` and `high` copies of `value` (0-d) at its ends (negative: cropped) and `interior` copies between
        elements."""
        interior = [0] * len(low) if interior is None else interior
        result = rules.pad_type(type_of(x), type_of(value), low, high, interior)
        if not self.identities and not any(low) and not any(high) and not any(interior):
            return x
        props = {"low": int_array(low), "high": int_array(high), "interior": int_array(interior)}
        return self.one(rules.PadOp, (x, value), result, props)

    def concatenate(self, xs: Sequence[SSAValue], dim: int) -> SSAValue:
        """xs, concatenated along `dim`."""
        result = rules.concatenate_type([type_of(x) for x in xs], dim)
        return xs[0] if len(xs) == 1 else self.one(rules.ConcatenateOp, xs, result, {"dim": integer_prop(dim)})

    def reverse(self, x: SSAValue, dims: Sequence[int]) -> SSAValue:
        """x, reversed along `dims`."""
        rules.check_dims(dims, len(shape_of(x)))
        return self.one(rules.ReverseOp, (x,), type_of(x), {"dims": int_array(dims)}) if dims else x

    def barrier(self, x: SSAValue) -> SSAValue:
        """x, materialized before anything is computed from it."""
        return self.one(rules.BarrierOp, (x,), type_of(x))
