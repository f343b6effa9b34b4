"""The few dialect ops of views, in numpy: builds a view's program, counts its ops, and runs it."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Block, Operation, SSAValue

from lazytpu.aten.views.access import Base, View, read, write
from lazytpu.ir import constants, indexing, pointwise, shape
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, ints, numpy_dtype, shape_of, tensor_type


def read_view(memory: np.ndarray, base: Base, view: View) -> tuple[np.ndarray, list[str]]:
    """Return the view's value on a storage whose value is `memory`, and the names of the ops."""
    block = Block(arg_types=[tensor_type(base.dtype, memory.shape)])
    return run(block, read(Builder(block), block.args[0], base, view), [memory])


def write_view(memory: np.ndarray, base: Base, view: View, value: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return the storage's new value after `value` is written through the view, and the names of the ops."""
    block = Block(arg_types=[tensor_type(base.dtype, memory.shape), tensor_type(view.dtype, value.shape)])
    return run(block, write(Builder(block), block.args[0], base, view, block.args[1]), [memory, value])


def run(block: Block, result: SSAValue, inputs: list[np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Return the value of `result`, and the names (without the dialect's) of the live computing ops."""
    values: dict[SSAValue, np.ndarray] = dict(zip(block.args, inputs, strict=True))
    live = {result}
    for op in reversed(list(block.ops)):
        op.verify()
        if op.results[0] in live:
            live.update(op.operands)
    names: list[str] = []
    for op in block.ops:
        if op.results[0] in live:
            values[op.results[0]] = out = _evaluate(op, [values[x] for x in op.operands])
            assert (out.shape, out.dtype) == (shape_of(op.results[0]), numpy_dtype(dtype_of(op.results[0]))), op.name
            if op.name not in ("lazytpu.constant", "lazytpu.iota"):
                names.append(op.name.removeprefix("lazytpu."))
    return values[result], names


def _evaluate(op: Operation, x: list[np.ndarray]) -> np.ndarray:
    to = shape_of(op.results[0])
    dtype = numpy_dtype(dtype_of(op.results[0]))
    match op:
        case constants.ConstantOp():
            number = op.value
            attributes = number if isinstance(number, ArrayAttr) else (number,)
            components = [attribute.value.data for attribute in attributes]
            return np.full(to, complex(*components) if len(components) == 2 else components[0], dtype)
        case constants.IotaOp():
            dim = op.dim.value.data
            counts = np.arange(to[dim], dtype=dtype)
            return np.broadcast_to(counts.reshape([-1 if d == dim else 1 for d in range(len(to))]), to)
        case shape.ReshapeOp():
            return x[0].reshape(to)
        case shape.TransposeOp():
            return x[0].transpose(ints(op.permutation))
        case shape.SliceOp():
            bounds = zip(ints(op.starts), ints(op.limits), ints(op.strides), strict=True)
            return x[0][tuple(slice(*b) for b in bounds)]
        case shape.PadOp():
            out = np.full(to, x[1], dtype)
            spans = zip(ints(op.low), x[0].shape, ints(op.interior), strict=True)
            out[tuple(slice(low, low + (n - 1) * (i + 1) + 1, i + 1) for low, n, i in spans)] = x[0]
            return out
        case shape.BroadcastInDimOp():
            wide = [1] * len(to)
            for n, dim in zip(x[0].shape, ints(op.dims), strict=True):
                wide[dim] = n
            return np.broadcast_to(x[0].reshape(wide), to)
        case shape.ConcatenateOp():
            return np.concatenate(x, op.dim.value.data)
        case pointwise.SelectOp():
            return np.where(x[0], x[1], x[2])
        case pointwise.ConvertOp():
            return x[0].astype(dtype)
        case pointwise.CompareOp():
            return {"GE": np.greater_equal, "NE": np.not_equal}[op.direction.data](x[0], x[1])
        case pointwise.BitcastConvertOp():
            return np.ascontiguousarray(x[0]).reshape(-1).view(dtype).reshape(to)
        case indexing.DynamicUpdateSliceOp():
            out = x[0].copy()
            out[tuple(slice(int(s), int(s) + n) for s, n in zip(x[2:], x[1].shape, strict=True))] = x[1]
            return out
        case indexing.GatherOp():
            (axis,) = ints(op.start_index_map)
            return np.take(x[0], x[1][:, 0], axis)
        case indexing.ScatterOp():
            out = x[0].copy()
            np.maximum.at(out, x[1][:, 0], x[2])
            return out
        case _:
            names = {"add": np.add, "mul": np.multiply, "max": np.maximum, "real": np.real, "imag": np.imag}
            names["complex"] = lambda real, imag: (real + 1j * imag).astype(dtype)
            return names[op.name.removeprefix("lazytpu.")](*x)
