"""Running a module without compiling it, in StableHLO's reference interpreter: slow and exact, on numpy arrays.

It is the oracle for the lowering rules. Its Python interface takes and returns attributes, which cannot convert every
dtype to numpy. So a wrapper of `@main` takes and returns bf16 and f8 as unsigned integers of the same bits, and complex
numbers as two reals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lazytpu.runtime.xla.mlir import eval_module, func, ir, legalize_chlo, stablehlo
from lazytpu.runtime.xla.signature import element_dtype, main_function

_AS_BITS = {
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.uint16),
    np.dtype(ml_dtypes.float8_e4m3fn): np.dtype(np.uint8),
    np.dtype(ml_dtypes.float8_e5m2): np.dtype(np.uint8),
}
_REAL = {np.dtype(np.complex64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.float64)}


def evaluate(module: ir.Module, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return the results of `@main` on these arrays. The module itself is not changed.

    Raises:
        ValueError: the arrays do not match the parameters of `@main`.
    """
    with module.context, ir.Location.unknown():
        wrapped = ir.Module.parse(str(module))
        dtypes = _wrap_main(wrapped, arrays)
        legalize_chlo(wrapped)
        components = [component for array in arrays for component in _split(array)]
        results = eval_module(wrapped, [_attribute(component) for component in components])
        return _join([np.array(result) for result in results], dtypes)


def _wrap_main(module: ir.Module, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.dtype[Any]]:
    """Rename `@main`, and build a new one around it with arguments and results that numpy supports. Return the dtypes
    of the original results."""
    inner = main_function(module)
    kind = inner.type
    expected = [(element_dtype(t), tuple(t.shape)) for t in map(ir.RankedTensorType, kind.inputs)]
    shapes = [(a.dtype, a.shape) for a in arrays]
    if expected != shapes:
        raise ValueError(f"@main takes {expected}; got {shapes}")
    dtypes = [element_dtype(ir.RankedTensorType(t)) for t in kind.results]
    inner.attributes["sym_name"] = ir.StringAttr.get("wrapped")
    inner.attributes["sym_visibility"] = ir.StringAttr.get("private")
    for attribute in ("arg_attrs", "res_attrs"):
        if attribute in inner.attributes:
            del inner.attributes[attribute]
    parameters = [_tensor(p) for a in arrays for p in _split(a)]
    with ir.InsertionPoint(module.body):
        outer = func.FuncOp("main", ir.FunctionType.get(parameters, []))
    block = outer.add_entry_block()
    with ir.InsertionPoint(block):
        pending = list(block.arguments)
        call = func.CallOp(kind.results, "wrapped", [_rebuild(pending, ir.RankedTensorType(t)) for t in kind.inputs])
        returned = [component for result in call.results for component in _take_apart(result)]
        func.ReturnOp(returned)
    outer.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(parameters, [r.type for r in returned]))
    return dtypes


def _rebuild(pending: list[ir.Value], kind: ir.RankedTensorType) -> ir.Value:
    """Return the next argument of the original function, from the next one or two arguments of the wrapper."""
    dtype = element_dtype(kind)
    if dtype in _REAL:
        return stablehlo.complex(pending.pop(0), pending.pop(0))
    return stablehlo.bitcast_convert(kind, pending.pop(0)) if dtype in _AS_BITS else pending.pop(0)


def _take_apart(value: ir.Value) -> list[ir.Value]:
    kind = ir.RankedTensorType(value.type)
    dtype = element_dtype(kind)
    if dtype in _REAL:
        return [stablehlo.real(value), stablehlo.imag(value)]
    if dtype in _AS_BITS:
        bits = ir.IntegerType.get_unsigned(8 * dtype.itemsize)
        return [stablehlo.bitcast_convert(ir.RankedTensorType.get(kind.shape, bits), value)]
    return [value]


def _split(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    if array.dtype in _REAL:
        return [array.real.copy("C"), array.imag.copy("C")]
    return [array.copy("C").view(_AS_BITS.get(array.dtype, array.dtype))]


def _join(components: list[np.ndarray[Any, Any]], dtypes: Sequence[np.dtype[Any]]) -> list[np.ndarray[Any, Any]]:
    results: list[np.ndarray[Any, Any]] = []
    for dtype in dtypes:
        component = components.pop(0)
        if dtype in _REAL:
            results.append((component + 1j * components.pop(0)).astype(dtype))
        else:
            # numpy reads an empty attribute as float64 for any element type.
            results.append(component.view(dtype) if dtype in _AS_BITS and component.size else component.astype(dtype))
    return results


def _element(dtype: np.dtype[Any]) -> ir.Type:
    if dtype == np.bool_:
        return ir.IntegerType.get_signless(1)
    bits = 8 * dtype.itemsize
    if dtype.kind == "f":
        return {16: ir.F16Type, 32: ir.F32Type, 64: ir.F64Type}[bits].get()
    return ir.IntegerType.get_unsigned(bits) if dtype.kind == "u" else ir.IntegerType.get_signless(bits)


def _tensor(array: np.ndarray[Any, Any]) -> ir.Type:
    return ir.RankedTensorType.get(array.shape, _element(array.dtype))


def _attribute(array: np.ndarray[Any, Any]) -> ir.Attribute:
    data: Any = array
    return ir.DenseElementsAttr.get(data, type=_element(array.dtype), shape=array.shape)
