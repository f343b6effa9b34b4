"""Builds ops with inferred result types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    AnyTensorType,
    DictionaryAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir import constants, contractions, indexing, pointwise, random, reductions, sorting, template
from lazytpu.ir import shape as _shape
from lazytpu.ir.base import TensorOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.types import dtype_of, int_array, numpy_dtype, shape_of, string, tensor_type, type_of


_Kind = TypeVar("_Kind", bound=TensorOp)


@lru_cache(maxsize=1024)
def _number(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


@lru_cache(maxsize=2)
def _flag(value: bool) -> IntegerAttr:
    return IntegerAttr(int(value), IntegerType(1))


def _arrays(lists: Mapping[str, Sequence[int]]) -> dict[str, Attribute]:
    return {name: int_array(values) for name, values in lists.items()}


def _op_class(name: str, base: type[_Kind]) -> type[_Kind]:
    kind = OPS.get(name)
    if kind is None or not issubclass(kind, base):
        known = ", ".join(mnemonic for mnemonic, op in OPS.items() if issubclass(op, base))
        raise ValueError(f"{name!r} is not an elementwise op of this number of operands; expected one of {known}")
    return kind


class Materializable(Protocol):
    """A number of the traced program: a constant, or one that arrives at run time."""

    def materialize(self, builder: Any, dtype: str) -> SSAValue: ...


class Builder:
    """Appends ops to a block (or inserts them before an op of it) and returns their results.

    Arguments are checked as ops are built: a contradiction raises ValueError that says what was expected and what came.
    """

    def __init__(self, block: Block, before: Operation | None = None):
        self.block = block
        self.before = before
        self.location: LocationAttr = UNKNOWN_LOC
        self.checks: list[tuple[SSAValue, str, LocationAttr]] = []
        "Registered bounds checks: (0-d i1 that must be true, message, source line)."
        self.out: list[tuple[str, tuple[int, ...]]] = []
        "(dtype, shape) expected of each result of the op now being imported."
        self.precision = "highest"
        "Precision of f32 contractions that the program asked for."

    @contextmanager
    def at(self, location: LocationAttr) -> Iterator[None]:
        """Ops built inside carry `location` (the user's source line)."""
        outer, self.location = self.location, location
        try:
            yield
        finally:
            self.location = outer

    def op(
        self,
        kind: type[TensorOp],
        operands: Sequence[SSAValue],
        result_types: Sequence[AnyTensorType],
        properties: Mapping[str, Attribute] = {},
    ) -> TensorOp:
        """Builds an op of class `kind` from parts that are right already."""
        made = kind.create(operands=operands, result_types=result_types, properties=properties, location=self.location)
        if self.before is None:
            self.block.add_op(made)
        else:
            self.block.insert_op_before(made, self.before)
        return made

    def _one(
        self,
        kind: type[TensorOp],
        operands: Sequence[SSAValue],
        result_type: AnyTensorType,
        properties: Mapping[str, Attribute] = {},
    ) -> SSAValue:
        return self.op(kind, operands, (result_type,), properties).results[0]

    # Constants

    def constant(self, value: bool | int | float | complex, dtype: str, shape: Sequence[int] = ()) -> SSAValue:
        """A tensor of `shape` whose elements are all `value`."""
        prop = constants.scalar(value, dtype)
        return self._one(constants.ConstantOp, (), tensor_type(dtype, shape), {"value": prop})

    def array(self, array: np.ndarray, dtype: str) -> SSAValue:
        """A table of numbers, kept in the program; a splat when all its elements have the same bits."""
        data = np.ascontiguousarray(array, dtype=numpy_dtype(dtype)).reshape(array.shape)
        raw = data.tobytes()
        if data.size and raw == raw[: data.itemsize] * data.size:
            return self.constant(data.reshape(-1)[:1].tolist()[0], dtype, data.shape)
        prop = string(raw.hex()) if len(raw) < 64 else constants.StringAttr(raw.hex())
        return self._one(constants.DenseConstantOp, (), tensor_type(dtype, data.shape), {"data": prop})

    def iota(self, dtype: str, shape: Sequence[int], dim: int) -> SSAValue:
        """Each element is its own index along `dim`."""
        result = constants.iota_type(dtype, shape, dim)
        return self._one(constants.IotaOp, (), result, {"dim": _number(dim)})

    def number(self, pack: SSAValue, index: int) -> SSAValue:
        """Element `index` of a 1-D pack of run-time numbers (0-d)."""
        result = constants.number_type(type_of(pack), index)
        return self._one(constants.NumberOp, (pack,), result, {"index": _number(index)})

    def scalar(self, number: Materializable, dtype: str) -> SSAValue:
        """A recorded number as a 0-d tensor: a constant, or read from the pack of run-time numbers."""
        return number.materialize(self, dtype)

    # Elementwise

    def unary(self, name: str, x: SSAValue) -> SSAValue:
        """The elementwise op `name` ("exp", "neg", ...) of one operand."""
        kind = _op_class(name, pointwise.UnaryOp)
        return self._one(kind, (x,), kind.result_of(type_of(x)))

    def binary(self, name: str, x: SSAValue, y: SSAValue) -> SSAValue:
        """The elementwise op `name` ("add", "pow", ...) of two operands of the same type."""
        kind = _op_class(name, pointwise.BinaryOp)
        return self._one(kind, (x, y), kind.result_of(type_of(x), type_of(y)))

    def compare(self, direction: str, x: SSAValue, y: SSAValue) -> SSAValue:
        """x `direction` y, one of EQ NE LT LE GT GE, as i1."""
        result = pointwise.compare_type(direction, type_of(x), type_of(y))
        return self._one(pointwise.CompareOp, (x, y), result, {"direction": string(direction)})

    def select(self, pred: SSAValue, on_true: SSAValue, on_false: SSAValue) -> SSAValue:
        """on_true where pred (i1, 0-d or of the same shape) is true, else on_false."""
        result = pointwise.select_type(type_of(pred), type_of(on_true), type_of(on_false))
        return self._one(pointwise.SelectOp, (pred, on_true, on_false), result)

    def clamp(self, low: SSAValue, x: SSAValue, high: SSAValue) -> SSAValue:
        """min(max(x, low), high); bounds are 0-d or shaped as x."""
        result = pointwise.clamp_type(type_of(low), type_of(x), type_of(high))
        return self._one(pointwise.ClampOp, (low, x, high), result)

    def convert(self, x: SSAValue, dtype: str) -> SSAValue:
        """x in another dtype; x itself when it has that dtype."""
        if dtype_of(x) == dtype:
            return x
        return self._one(pointwise.ConvertOp, (x,), tensor_type(dtype, shape_of(x)))

    def bitcast_convert(self, x: SSAValue, dtype: str, shape: Sequence[int] | None = None) -> SSAValue:
        """The bits of x read as `dtype`; the last dimension appears or disappears with the ratio of the widths."""
        result = pointwise.bitcast_type(type_of(x), dtype)
        if shape is not None and tuple(shape) != shape_of(result):
            raise ValueError(f"the bits of {x.type} as {dtype} have shape {list(shape_of(result))}; got {list(shape)}")
        return x if result == x.type else self._one(pointwise.BitcastConvertOp, (x,), result)

    # Shape

    def broadcast_in_dim(self, x: SSAValue, shape: Sequence[int], dims: Sequence[int]) -> SSAValue:
        """Dimension i of x becomes dimension dims[i] of the result; all else is repeated."""
        result = _shape.broadcast_type(type_of(x), shape, dims)
        return self._one(_shape.BroadcastInDimOp, (x,), result, {"dims": int_array(dims)})

    def broadcast_to(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """x repeated to `shape`, dimensions aligned at the right as in numpy; x itself when it has that shape."""
        own = shape_of(x)
        if own == tuple(shape):
            return x
        return self.broadcast_in_dim(x, shape, range(len(shape) - len(own), len(shape)))

    def reshape(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The same elements under another shape; x itself when it has that shape."""
        if shape_of(x) == tuple(shape):
            return x
        return self._one(_shape.ReshapeOp, (x,), _shape.reshape_type(type_of(x), shape))

    def transpose(self, x: SSAValue, permutation: Sequence[int]) -> SSAValue:
        """Dimension i of the result is dimension permutation[i] of x; x itself for the identity."""
        if tuple(permutation) == tuple(range(len(shape_of(x)))):
            return x
        result = _shape.transpose_type(type_of(x), permutation)
        return self._one(_shape.TransposeOp, (x,), result, {"permutation": int_array(permutation)})

    def slice(
        self, x: SSAValue, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
    ) -> SSAValue:
        """x[starts[i] : limits[i] : strides[i], ...]; x itself when that is all of it."""
        strides = [1] * len(starts) if strides is None else strides
        result = _shape.slice_type(type_of(x), starts, limits, strides)
        if result == x.type:
            return x
        props = {"starts": int_array(starts), "limits": int_array(limits), "strides": int_array(strides)}
        return self._one(_shape.SliceOp, (x,), result, props)

    def pad(
        self,
        x: SSAValue,
        value: SSAValue,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> SSAValue:
        """x with `value` (0-d) around it (negative: cropped) and `interior` copies of it between its elements."""
        interior = [0] * len(low) if interior is None else interior
        result = _shape.pad_type(type_of(x), type_of(value), low, high, interior)
        if not any(low) and not any(high) and not any(interior):
            return x
        props = {"low": int_array(low), "high": int_array(high), "interior": int_array(interior)}
        return self._one(_shape.PadOp, (x, value), result, props)

    def concatenate(self, xs: Sequence[SSAValue], dim: int) -> SSAValue:
        """The operands one after the other along `dim`."""
        result = _shape.concatenate_type([type_of(x) for x in xs], dim)
        return xs[0] if len(xs) == 1 else self._one(_shape.ConcatenateOp, xs, result, {"dim": _number(dim)})

    def reverse(self, x: SSAValue, dims: Sequence[int]) -> SSAValue:
        """x with the order of elements reversed along `dims`."""
        _shape.check_dims(dims, len(shape_of(x)))
        return self._one(_shape.ReverseOp, (x,), type_of(x), {"dims": int_array(dims)}) if dims else x

    # Reductions

    def reduce(self, kind: str, x: SSAValue, dims: Sequence[int], keepdim: bool = False) -> SSAValue:
        """Folds `dims` by add, mul, max, min, and, or; with `keepdim` they stay, with size 1."""
        result = reductions.reduce_type(kind, type_of(x), dims)
        props = {"kind": string(kind), "dims": int_array(dims)}
        folded = self._one(reductions.ReduceOp, (x,), result, props) if dims else x
        if not keepdim:
            return folded
        return self.reshape(folded, [1 if d in dims else size for d, size in enumerate(shape_of(x))])

    def argreduce(self, kind: str, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
        """(values, i64 indices) of the max or min along `dim`, which is dropped; NaN wins, the first of equals wins."""
        types = reductions.argreduce_types(kind, type_of(x), dim)
        props = {"kind": string(kind), "dim": _number(dim)}
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
        """Folds a sliding window; each list has one number for each dimension of x."""
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
        return self._one(reductions.ReduceWindowOp, (x,), result, {"kind": string(kind)} | _arrays(lists))

    def cumulative(self, kind: str, x: SSAValue, dim: int) -> SSAValue:
        """Inclusive scan of x along `dim` by add, mul, max or min."""
        result = reductions.cumulative_type(kind, type_of(x), dim)
        return self._one(reductions.CumulativeOp, (x,), result, {"kind": string(kind), "dim": _number(dim)})

    # Contractions

    def dot_general(
        self,
        x: SSAValue,
        y: SSAValue,
        lhs_batch: Sequence[int],
        rhs_batch: Sequence[int],
        lhs_contract: Sequence[int],
        rhs_contract: Sequence[int],
        precision: str = "highest",
        dtype: str | None = None,
    ) -> SSAValue:
        """Products summed over the contracted dims; the result has dtype `dtype` (default: that of x)."""
        lists = {
            "lhs_batch": lhs_batch,
            "rhs_batch": rhs_batch,
            "lhs_contract": lhs_contract,
            "rhs_contract": rhs_contract,
        }
        result = contractions.dot_general_type(type_of(x), type_of(y), *lists.values(), dtype or dtype_of(x))
        props = _arrays(lists) | {"precision": contractions.precision(precision)}
        return self._one(contractions.DotGeneralOp, (x, y), result, props)

    def convolution(
        self,
        x: SSAValue,
        w: SSAValue,
        *,
        strides: Sequence[int],
        low: Sequence[int],
        high: Sequence[int],
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        feature_groups: int = 1,
        batch_groups: int = 1,
        layout: str,
        window_reversal: Sequence[int] | None = None,
        precision: str = "highest",
        dtype: str | None = None,
    ) -> SSAValue:
        """A convolution; `layout` as "NC01,OI01,NC01" names the dimensions of x, w and the result."""
        lists = {
            "strides": strides,
            "low": low,
            "high": high,
            "lhs_dilation": lhs_dilation,
            "rhs_dilation": rhs_dilation,
        }
        dims, groups = contractions.conv_layout(layout), (feature_groups, batch_groups)
        result = contractions.convolution_type(
            type_of(x), type_of(w), *lists.values(), *groups, dims, dtype or dtype_of(x)
        )
        lists["window_reversal"] = [0] * len(strides) if window_reversal is None else window_reversal
        props: dict[str, Attribute] = _arrays(lists)
        props |= {"feature_groups": _number(feature_groups), "batch_groups": _number(batch_groups)}
        props |= {"layout": string(layout), "precision": contractions.precision(precision)}
        return self._one(contractions.ConvolutionOp, (x, w), result, props)

    # Indexing

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
        """Slices of x at start indices, which are clamped; dimension numbers as in StableHLO."""
        lists = {
            "offset_dims": offset_dims,
            "collapsed_slice_dims": collapsed_slice_dims,
            "operand_batching_dims": operand_batching_dims,
            "start_indices_batching_dims": start_indices_batching_dims,
            "start_index_map": start_index_map,
            "slice_sizes": slice_sizes,
        }
        result = indexing.gather_type(type_of(x), type_of(indices), index_vector_dim=index_vector_dim, **lists)
        props: dict[str, Attribute] = _arrays(lists)
        props |= {"index_vector_dim": _number(index_vector_dim), "indices_are_sorted": _flag(indices_are_sorted)}
        return self._one(indexing.GatherOp, (x, indices), result, props)

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
    ) -> SSAValue:
        """x with slices of `updates` set, added, multiplied, ... at indices; slices that do not fit are left out."""
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
        props: dict[str, Attribute] = {"kind": string(kind), **_arrays(lists)}
        props |= {"index_vector_dim": _number(index_vector_dim), "unique_indices": _flag(unique_indices)}
        props |= {"indices_are_sorted": _flag(indices_are_sorted)}
        return self._one(indexing.ScatterOp, (x, indices, updates), result, props)

    def dynamic_slice(self, x: SSAValue, starts: Sequence[SSAValue], sizes: Sequence[int]) -> SSAValue:
        """The slice of `sizes` at run-time starts (one 0-d integer for each dimension, clamped)."""
        result = indexing.dynamic_slice_type(type_of(x), [type_of(s) for s in starts], sizes)
        return self._one(indexing.DynamicSliceOp, (x, *starts), result, {"sizes": int_array(sizes)})

    def dynamic_update_slice(self, x: SSAValue, update: SSAValue, starts: Sequence[SSAValue]) -> SSAValue:
        """x with `update` written at run-time starts (one 0-d integer for each dimension, clamped)."""
        result = indexing.dynamic_update_slice_type(type_of(x), type_of(update), [type_of(s) for s in starts])
        return self._one(indexing.DynamicUpdateSliceOp, (x, update, *starts), result)

    # Random numbers, sorting, templates

    def random_bits(self, seed: SSAValue, offset: SSAValue, shape: Sequence[int], dtype: str = "ui32") -> SSAValue:
        """Random bits that depend on (seed, offset) and each element's row-major index alone."""
        result = random.random_bits_type(type_of(seed), type_of(offset), shape, dtype)
        return self._one(random.RandomBitsOp, (seed, offset), result)

    def sort(self, xs: Sequence[SSAValue], dim: int, descending: bool = False) -> list[SSAValue]:
        """All of xs in the stable order that sorts the first along `dim`; NaN is the largest."""
        types = sorting.sort_types([type_of(x) for x in xs], dim)
        props = {"dim": _number(dim), "descending": _flag(descending)}
        return list(self.op(sorting.SortOp, xs, types, props).results)

    def template(
        self,
        name: str,
        /,
        operands: Sequence[SSAValue],
        results: Sequence[tuple[str, Sequence[int]]],
        **params: template.Param,
    ) -> list[SSAValue]:
        """A call of the template `name`; `results` are the (dtype, shape) it returns for these operands and params."""
        types = [tensor_type(dtype, shape) for dtype, shape in results]
        made = DictionaryAttr({key: template.to_attribute(value) for key, value in params.items()})
        props = {"name": string(name), "params": made}
        return list(self.op(template.TemplateOp, operands, types, props).results)

    # Checks

    def check(self, ok: SSAValue, message: str) -> None:
        """Registers a bounds check: an IndexError with `message` at the next host read unless all of `ok` (i1) is true."""
        passed = self.reduce("and", ok, range(len(shape_of(ok)))) if shape_of(ok) else ok
        if dtype_of(passed) != "i1":
            raise ValueError(f"a check is i1; got {ok.type}")
        self.checks.append((passed, message, self.location))

    # Shorthands

    def add(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("add", x, y)

    def sub(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("sub", x, y)

    def mul(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("mul", x, y)

    def div(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("div", x, y)

    def max(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("max", x, y)

    def min(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("min", x, y)

    def and_(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("and", x, y)

    def or_(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("or", x, y)

    def not_(self, x: SSAValue) -> SSAValue:
        return self.unary("not", x)

    def neg(self, x: SSAValue) -> SSAValue:
        return self.unary("neg", x)

    def exp(self, x: SSAValue) -> SSAValue:
        return self.unary("exp", x)

    def log(self, x: SSAValue) -> SSAValue:
        return self.unary("log", x)

    def sqrt(self, x: SSAValue) -> SSAValue:
        return self.unary("sqrt", x)

    def rsqrt(self, x: SSAValue) -> SSAValue:
        return self.unary("rsqrt", x)

    def abs(self, x: SSAValue) -> SSAValue:
        return self.unary("abs", x)
