"""Programs that a Python function builds at any size, made one program of the bound and compared with it at each size.

`build(b, *arguments, **sizes)` gets the sizes as numbers. It is called at a few of them, and what differs between the
modules is annotated: `unified` finds the forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.forms import Form, Range, form, parse, symbol
from lazytpu.ir.sizes import SIZES, set_sizes, set_symbols
from lazytpu.ir.text import parse_module, print_module
from lazytpu.ir.types import dtype_of, ints, is_int_array, numpy_dtype, shape_of, tensor_type
from lazytpu.lowering import emit
from lazytpu.passes.padding.dims import Dim
from lazytpu.passes.padding.pad_sizes import Sized, pad_sizes
from lazytpu.passes.pipeline import check
from lazytpu.runtime import client
from lazytpu.runtime.evaluate import evaluate
from lazytpu.runtime.program import Program
from tests.compiling import QUICK

Build = Callable[..., "SSAValue | Sequence[SSAValue]"]
N = {"n": (0, 5)}


def argument_forms(text: str) -> tuple[str, list[Form]]:
    """The dtype and the sizes of a text such as "f32[2,n+1]"."""
    dtype, _, rest = text.partition("[")
    return dtype, [parse(size) for size in rest.rstrip("]").split(",") if size]


def module_at(build: Build, arguments: Sequence[str], sizes: Mapping[str, int]) -> ModuleOp:
    """The module of these sizes."""
    forms = [argument_forms(text) for text in arguments]
    block = Block(arg_types=[tensor_type(dtype, [f.at(sizes) for f in shape]) for dtype, shape in forms])
    results = build(Builder(block), *block.args, **sizes)
    results = [results] if isinstance(results, SSAValue) else list(results)
    block.add_op(ReturnOp(*results))
    types = [a.type for a in block.args], [r.type for r in results]
    return ModuleOp([FuncOp("main", types, Region(block))])


def samples(symbols: Mapping[str, Range]) -> list[dict[str, int]]:
    """Sizes at which the forms of one or two symbols are found, and the bound, which checks them."""
    names, bound = list(symbols), {name: high for name, (_, high) in symbols.items()}
    inner = {name: max(low, high - 3) for name, (low, high) in symbols.items()}
    moved = [{**inner, name: inner[name] + 1} for name in names]
    both = [{name: inner[name] + 1 for name in names}] if len(names) > 1 else []
    return [inner, *moved, *both, bound]


def fitted(numbers: Sequence[int], at: Sequence[Mapping[str, int]], symbols: Sequence[str]) -> Form:
    """The form that is these numbers at these sizes: a polynomial, or its quotient by 2, 3 or 4."""
    if len(set(numbers)) == 1:
        return form(numbers[0])
    basis = [form(1), *map(symbol, symbols)] + ([symbol(symbols[0]) * symbol(symbols[1])] if len(symbols) > 1 else [])
    matrix = np.array([[term.at(sizes) for term in basis] for sizes in at[:-1]], float)
    solved = np.linalg.solve(matrix, np.array(numbers[:-1], float))
    if np.allclose(solved, np.round(solved)):
        total = form(0)
        for term, factor in zip(basis, np.round(solved).astype(int), strict=True):
            total = total + term * int(factor)
        if [total.at(sizes) for sizes in at] == list(numbers):
            return total
    for by, factor, rest in itertools.product((2, 3, 4), (1, 2, 3), range(-12, 13)):
        tried = (symbol(symbols[0]) * factor + rest) // by
        if [tried.at(sizes) for sizes in at] == list(numbers):
            return tried
    raise ValueError(f"{numbers} at {at} are no form")


def unified(modules: Sequence[ModuleOp], at: Sequence[Mapping[str, int]], symbols: Mapping[str, Range]) -> ModuleOp:
    """The last module, that of the bound, with what differs between all of them as annotations."""
    functions = [next(op for op in module.ops if isinstance(op, FuncOp)) for module in modules]
    blocks = [function.body.block for function in functions]
    names = list(symbols)
    sizes = []
    for arguments in zip(*(block.args for block in blocks), strict=True):
        fits = [fitted(numbers, at, names) for numbers in zip(*map(shape_of, arguments), strict=True)]
        text = " ".join("_" if f.number is not None else str(f) for f in fits)
        sizes.append(DictionaryAttr({SIZES: StringAttr(text)} if any(f.number is None for f in fits) else {}))
    functions[-1].arg_attrs = ArrayAttr(sizes)
    _unify(blocks, at, names)
    set_symbols(modules[-1], symbols)
    return modules[-1]


def _unify(blocks: Sequence[Block], at: Sequence[Mapping[str, int]], names: Sequence[str]) -> None:
    for ops in zip(*(block.ops for block in blocks), strict=True):
        assert len({op.name for op in ops}) == 1, [op.name for op in ops]
        for regions in zip(*(op.regions for op in ops), strict=True):
            _unify([region.block for region in regions], at, names)
        found = {name: fits for name, lists in _numbers(ops) if (fits := _forms(lists, at, names))}
        if found:
            set_sizes(ops[-1], found)


def _numbers(ops: Sequence[Operation]) -> Iterable[tuple[str, list[tuple[int, ...]]]]:
    for name, prop in ops[-1].properties.items():
        if is_int_array(prop):
            yield name, [ints(op.properties[name]) for op in ops]
    if isinstance(ops[-1], ConstantOp):
        values = [number_of(op.properties["value"]) for op in ops]
        if any(value != values[0] and value == value for value in values):
            yield "value", [(int(value.real),) for value in values]
    if ops[-1].results and not ops[-1].regions:
        yield "result", [shape_of(op.results[0]) for op in ops]


def _forms(lists: Sequence[Sequence[int]], at, names) -> list[Form | None] | None:
    fits = [fitted(numbers, at, names) for numbers in zip(*lists, strict=True)]
    return [None if f.number is not None else f for f in fits] if any(f.number is None for f in fits) else None


def annotated(build: Build, arguments: Sequence[str], symbols: Mapping[str, Range] = N) -> ModuleOp:
    """The module of the bound with its sizes, through text."""
    at = samples(symbols)
    module = unified([module_at(build, arguments, sizes) for sizes in at], at, symbols)
    text = print_module(module)
    again = parse_module(text)
    assert print_module(again) == text
    return again


def true_of(array: np.ndarray, dims: Sequence[Dim], sizes: Mapping[str, int]) -> np.ndarray:
    """The true elements of an array in memory."""
    factors = [factor for dim in dims for factor in dim.factors]
    parts = array.reshape([factor.size for factor in factors])
    parts = parts[tuple(slice(0, factor.true.at(sizes)) for factor in factors)]
    return parts.reshape([dim.total.at(sizes) for dim in dims])


def poison(dtype: np.dtype, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """What padding holds: NaN and infinities, extreme integers and small ones, which are indices, any truth value."""
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
    """An array of true elements in memory, with poison around."""
    full = poison(array.dtype, [dim.size for dim in dims], rng)
    full[tuple(slice(0, size) for size in array.shape)] = array
    return full


Run = Callable[[ModuleOp], Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]]
"Makes the function that runs a module."


def interpreted(module: ModuleOp) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    emitted = emit(module)
    return lambda arrays: evaluate(emitted, arrays)


def compiled(module: ModuleOp) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    """By XLA, for what the interpreter does not do: convolutions, sums over nothing, and scatters."""
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
    """The padded program computes what the exact ones do, at all sizes, whatever the padding holds.

    `values(i, array, rng)` may give other values of argument i."""
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
