"""Programs that a Python function builds at any size, made one program of the bound and compared with it at each size.

`build(b, *arguments, **sizes)` gets the sizes as symbolic ones, and as numbers for the exact programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import Form, Range, parse, symbol
from lazytpu.ir.symbolic import Derivation
from lazytpu.ir.text import parse_module, print_module
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of, tensor_type
from lazytpu.lowering import emit
from lazytpu.passes.padding.annotations import annotate, read
from lazytpu.passes.padding.dims import Dim
from lazytpu.passes.padding.pad_sizes import Sized, pad_sizes
from lazytpu.passes.pipeline import check
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.evaluate import evaluate
from lazytpu.runtime.xla.program import Program
from tests.compiling import QUICK

Build = Callable[..., "SSAValue | Sequence[SSAValue]"]
N = {"n": (0, 5)}


def argument_forms(text: str) -> tuple[str, list[Form]]:
    """Return the dtype and the sizes of a text such as "f32[2,n+1]"."""
    dtype, _, dims = text.partition("[")
    return dtype, [parse(size) for size in dims.rstrip("]").split(",") if size]


def _size(of: Form, sizes: Mapping[str, Any]) -> Any:
    """Return the value of a size expression, symbolic during a derivation."""
    derivation = Derivation.active
    return of.at(sizes) if derivation is None else derivation.size(of)


def module_at(build: Build, arguments: Sequence[str], sizes: Mapping[str, int]) -> ModuleOp:
    """Build the module at these sizes."""
    forms = [argument_forms(text) for text in arguments]
    block = Block(arg_types=[tensor_type(dtype, [_size(f, sizes) for f in shape]) for dtype, shape in forms])
    results = build(Builder(block), *block.args, **sizes)
    results = [results] if isinstance(results, SSAValue) else list(results)
    block.add_op(ReturnOp(*results))
    types = [a.type for a in block.args], [r.type for r in results]
    return ModuleOp([FuncOp("main", types, Region(block))])


def annotated(build: Build, arguments: Sequence[str], symbols: Mapping[str, Range] = N) -> ModuleOp:
    """Build the module at the bound with annotated sizes, after a round trip through text."""
    with Derivation(symbols) as derivation:
        module = module_at(build, arguments, {name: derivation.size(symbol(name)) for name in symbols})
        reading = read(module)
    annotate(module, reading, symbols)
    text = print_module(module)
    again = parse_module(text)
    assert print_module(again) == text
    return again


def true_of(array: np.ndarray, dims: Sequence[Dim], sizes: Mapping[str, int]) -> np.ndarray:
    """Return the true elements of an array in memory."""
    factors = [factor for dim in dims for factor in dim.factors]
    factored = array.reshape([factor.size for factor in factors])
    factored = factored[tuple(slice(0, factor.true.at(sizes)) for factor in factors)]
    return factored.reshape([dim.total.at(sizes) for dim in dims])


def poison(dtype: np.dtype, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return random padding: NaN and infinities, extreme integers, small integers that are valid indices, booleans."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.choice(np.array([info.min, info.max, info.max // 2, 0, 1, 2], dtype), shape)
    if dtype.kind == "b":
        return rng.choice(np.array([True, False]), shape)
    return rng.choice([np.nan, np.nan, np.inf, -np.inf], shape).astype(dtype)


def drawn(dtype: np.dtype, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -3, 9, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(np.float64).astype(dtype)


def padded(array: np.ndarray, dims: Sequence[Dim], rng: np.random.Generator) -> np.ndarray:
    """Return an array in memory with these true elements, surrounded by poison."""
    full = poison(array.dtype, [dim.size for dim in dims], rng)
    full[tuple(slice(0, size) for size in array.shape)] = array
    return full


Run = Callable[[ModuleOp], Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]]
"A function that compiles a module and returns a function that runs it."


def interpreted(module: ModuleOp) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    emitted = emit(module)
    return lambda arrays: evaluate(emitted, arrays)


def compiled(module: ModuleOp) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    """Compile with XLA, for ops outside the interpreter: convolutions, sums over empty dims, and scatters."""
    program = Program.compile(emit(module), name="padded", options=QUICK)
    return lambda arrays: [client.to_host(x) for x in program.run([client.to_device(a) for a in arrays])]


def same_at_every_size(
    build: Build,
    arguments: Sequence[str],
    symbols: Mapping[str, Range] = N,
    *,
    tolerance: float = 0.0,
    values: Callable[[int, np.ndarray, np.random.Generator], np.ndarray] | None = None,
    sizes: Iterable[Mapping[str, int]] | None = None,
    run: Run = interpreted,
) -> Sized:
    """Check that the padded program equals the exact programs at all sizes, whatever the padding holds.

    `values(i, array, rng)` may replace the values of argument i."""
    module = annotated(build, arguments, symbols)
    sized = pad_sizes(module)
    assert sized is not None
    check(module, "the padded module")
    program = run(module)
    names = list(symbols)
    ranges = [range(low, high + 1) for low, high in symbols.values()]
    every = [dict(zip(names, at, strict=True)) for at in itertools.product(*ranges)]
    for at in every if sizes is None else sizes:
        rng = np.random.default_rng(sum(at.values()))
        exact = module_at(build, arguments, at)
        block = next(op for op in exact.ops if isinstance(op, FuncOp)).body.block
        arrays = [drawn(numpy_dtype(dtype_of(a)), shape_of(a), rng) for a in block.args]
        if values is not None:
            arrays = [values(i, array, rng).astype(array.dtype) for i, array in enumerate(arrays)]
        full = [padded(array, dims, rng) for array, dims in zip(arrays, sized.arguments, strict=True)]
        pack = np.array([at[name] for name in sized.symbols], np.int32)
        got, want = program([*full, pack]), run(exact)(arrays)
        for i, (actual, expected, dims) in enumerate(zip(got, want, sized.results, strict=True)):
            actual = true_of(np.asarray(actual), dims, at)
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), (at, i)
            if tolerance and expected.dtype.kind in "fc":
                np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, err_msg=f"{at}, {i}")
            else:
                np.testing.assert_array_equal(actual, expected, err_msg=f"{at}, {i}")
    return sized
