"""Builds a module with the builder, lowers it, and runs it in the reference interpreter or compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.types import DTYPES, numpy_dtype, tensor_type
from lazytpu.lowering import emit
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.evaluate import evaluate
from lazytpu.runtime.xla.program import Program
from tests.compiling import QUICK

NAMES = {numpy_dtype(name): name for name in DTYPES}

Build = Callable[..., SSAValue | Sequence[SSAValue]]


def module_of(
    build: Build,
    *types: tuple[str, Sequence[int]],
    arguments: Sequence[dict[str, Attribute]] | None = None,
    results: Sequence[dict[str, Attribute]] | None = None,
) -> ModuleOp:
    """Return a module whose `@main` takes arguments of these types and returns the values of `build(builder,
    *arguments)`.
    """
    function = FuncOp("main", ([tensor_type(*t) for t in types], []))
    block = function.body.block
    returned = build(Builder(block), *block.args)
    values = [returned] if isinstance(returned, SSAValue) else list(returned)
    block.add_op(ReturnOp(*values))
    function.function_type = FunctionType.from_lists([a.type for a in block.args], [v.type for v in values])
    if arguments is not None:
        function.arg_attrs = ArrayAttr([DictionaryAttr(a) for a in arguments])
    if results is not None:
        function.res_attrs = ArrayAttr([DictionaryAttr(a) for a in results])
    module = ModuleOp([function])
    module.verify()
    return module


def types_of(arrays: Sequence[np.ndarray[Any, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(NAMES[a.dtype], a.shape) for a in arrays]


def interpreted(build: Build, *arrays: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results of `build` on these arrays, by the reference interpreter."""
    inputs = [np.asarray(a) for a in arrays]
    return evaluate(emit(module_of(build, *types_of(inputs))), inputs)


def compiled(build: Build, *arrays: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results of `build` on these arrays, compiled by XLA."""
    inputs = [np.asarray(a) for a in arrays]
    program = Program.compile(emit(module_of(build, *types_of(inputs))), options=QUICK)
    return [client.to_host(r) for r in program.run([client.to_device(a) for a in inputs])]


def values(dtype: str, shape: Sequence[int], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return varied numbers of a dtype: normal for floats, small integers, both booleans."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    if dtype == "i1":
        return rng.integers(0, 2, shape).astype(kind)
    if dtype.startswith("ui"):
        return rng.integers(0, 20, shape).astype(kind)
    if dtype.startswith("i"):
        return rng.integers(-20, 20, shape).astype(kind)
    if dtype.startswith("c"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    return rng.standard_normal(shape).astype(kind)


# Relative and absolute error allowed for one operation.
TOLERANCE = {"f64": 1e-12, "c128": 1e-12, "f32": 2e-6, "c64": 3e-6, "f16": 2e-3, "bf16": 1.6e-2}


def assert_close(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], factor: float = 1.0) -> None:
    """Check for the same dtype and shape, equal integers, and floats within `TOLERANCE` of their dtype; NaN
    equals NaN."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    tolerance = factor * TOLERANCE.get(NAMES[actual.dtype], 0)
    if actual.dtype in (ml_dtypes.bfloat16, np.float16):
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
