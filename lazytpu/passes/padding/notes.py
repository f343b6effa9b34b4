"""The notes that `pad-sizes` needs, found by comparing the modules of one program at a few sizes.

The modules have the same ops, joined alike, and differ in integers alone: sizes in types, bounds of slices, constants.
Each is found as a form of the symbols, which one size more than the form has unknowns checks. `annotate` then writes
the notes on the module of any bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, IntegerType, ModuleOp, StringAttr, i1
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.forms import Form, Range, form, symbol
from lazytpu.ir.jax_call import JaxCallOp
from lazytpu.ir.sizes import RECIPROCAL, SIZES, STATIC, TWICE, set_sizes, set_symbols
from lazytpu.ir.types import dtype_of, ints, is_int_array, shape_of
from lazytpu.passes.padding.dims import Refused
from lazytpu.passes.padding.walk import Refusal

Sizes = Mapping[str, int]
NEAR = 1e-6  # what a float32 of a reciprocal may be off
END = ("end",)
"In the structure of a module, behind the ops of a region."
STRIDES = (2, 3, 4, 5, 8, 16)
CERTAIN = 7
"Samples for a form of three unknowns, which a few would fit by chance."
PERIOD = 32
"Quotients that are equal at so many sizes in a row are the same."
QUOTIENTS = [(by, factor, rest) for by in (2, 3, 4) for factor in (1, 2, 3) for rest in range(-12, 13)]


class OtherOps(Refusal):
    """A program has other ops at other sizes."""


class Unsettled(Refused):
    """Several forms are the numbers of these modules. The sizes with this `number` tell them apart."""

    def __init__(self, number: int, sizes: Sizes):
        super().__init__(f"what a number is at {dict(sizes)} is not known")
        self.number = number


@dataclass(frozen=True)
class Notes:
    """The notes of one program. `structure` is what is the same at all sizes; `numbers` has a number or a form for each
    integer of the module. They hold from the sizes `least` on, the smallest that were looked at; those of rows of sizes
    that are too short to tell two forms apart hold for these sizes `alone`."""

    structure: tuple[Any, ...]
    numbers: tuple[Form, ...]
    least: Sizes
    alone: bool

    def may_hold(self, symbols: Mapping[str, Range]) -> bool:
        """Whether they may be those of other ranges of sizes, too; `annotate` looks at the greatest."""
        return not self.alone and all(self.least[name] <= low for name, (low, _) in symbols.items())


@dataclass
class _Read:
    """A module as its structure and its integers. `places` are the ops with the names and counts of their integers."""

    function: FuncOp
    structure: list[Any] = field(default_factory=list[Any])
    integers: list[int] = field(default_factory=list[int])
    places: list[tuple[Operation | None, str, int]] = field(default_factory=list[tuple[Operation | None, str, int]])
    known: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])

    def add(self, op: Operation | None, name: str, numbers: Sequence[int]) -> None:
        self.places.append((op, name, len(numbers)))
        self.integers.extend(numbers)

    def block(self, block: Block) -> None:
        for argument in block.args:
            self.known[argument] = len(self.known)
        for op in block.ops:
            self.op(op)

    def op(self, op: Operation) -> None:
        others: list[Any] = []
        for name, prop in op.properties.items():
            if is_int_array(prop):
                numbers = ints(prop)
                self.add(op, name, numbers)
                others.append((name, len(numbers)))
            elif isinstance(op, ConstantOp) and name == "value":
                others.append(self._constant(op))
            elif isinstance(op, JaxCallOp) and name == "body" and op.padding.data:  # the key is another for each size
                others.append((name, op.body.data.rpartition("_")[0]))
            elif isinstance(prop, DictionaryAttr):
                numbers = list[int]()
                others.append((name, _parameters(prop, numbers)))
                self.add(op, name, numbers)
            else:
                others.append((name, str(prop)))
        types = [(dtype_of(result), len(shape_of(result))) for result in op.results]
        operands = [self.known[value] for value in op.operands]
        self.structure.append((op.name, tuple(others), tuple(types), tuple(operands)))
        for result in op.results:
            self.known[result] = len(self.known)
        if op.results and not op.regions:
            self.add(op, "result", shape_of(op.results[0]))
        for i, result in enumerate(op.results[1:] if isinstance(op, JaxCallOp) else (), 1):
            self.add(op, f"result{i}", shape_of(result))
        for region in op.regions:
            self.block(region.block)
            self.structure.append(END)

    def _constant(self, op: ConstantOp) -> Any:
        """A whole number may be a size, and 2 divided by one, as in gradients of means; any other is part of the
        structure."""
        number = number_of(op.value)
        if isinstance(number, bool) or number != number or isinstance(number, complex):
            return repr(number)
        if number in (float("inf"), float("-inf")) or abs(number) >= 1 << 31:
            return repr(number)
        if number != int(number):
            whole = round(TWICE / number)
            if abs(TWICE / number - whole) > NEAR * abs(whole) or not 1 < abs(whole) < 1 << 31:
                return repr(number)
            self.add(op, RECIPROCAL, (whole,))
            return RECIPROCAL
        self.add(op, "value", (int(number),))
        return "value"


def _parameters(value: Attribute, numbers: list[int]) -> Any:
    """The parameters of a template, with the integers in them added to `numbers`."""
    if isinstance(value, DictionaryAttr):
        return tuple([(name, _parameters(each, numbers)) for name, each in value.data.items()])
    if isinstance(value, ArrayAttr):
        return tuple([_parameters(each, numbers) for each in cast("ArrayAttr[Attribute]", value)])
    if isinstance(value, IntegerAttr):
        number = cast("IntegerAttr[IntegerType]", value)
        if number.type == i1:
            return bool(number.value.data)
        numbers.append(number.value.data)
        return int
    return str(value)


def _read(module: ModuleOp) -> _Read:
    function = next(op for op in module.ops if isinstance(op, FuncOp))
    read = _Read(function)
    for argument in function.body.block.args:
        read.structure.append((dtype_of(argument), len(shape_of(argument))))
        read.add(None, "argument", shape_of(argument))
    read.block(function.body.block)
    return read


def notes_of(modules: Sequence[ModuleOp], at: Sequence[Sizes], beside: Iterable[Sizes] = ()) -> Notes:
    """The notes of one program whose modules at these sizes are given, each with other sizes of the same symbols.

    Raises Refusal where the program differs in more than integers, or one is no form, and Unsettled where an integer is
    several forms that differ at one of the sizes `beside`."""
    reads = [_read(module) for module in modules]
    for read in reads[1:]:
        _same_structure(reads[0], read.structure, at)
    table = np.array([read.integers for read in reads])
    columns, back = np.unique(table, axis=1, return_inverse=True)
    fits = [fitted(column.tolist(), at) for column in columns.T]
    for number, sizes in enumerate(beside):
        if any(_differ(each, sizes) for each in fits):
            raise Unsettled(number, sizes)
    forms = [next(iter(fits[i]), None) for i in back.reshape(-1).tolist()]
    if None in forms:
        op, name = _place(reads[-1], forms.index(None))
        numbers, sizes = table[:, forms.index(None)].tolist(), [dict(each) for each in at]
        raise Refusal(op, f"{name} is {numbers} at the sizes {sizes}, which is no form of these")
    least = {name: min(sizes[name] for sizes in at) for name in at[0]}
    alone = any(_differ(each, dict.fromkeys(at[0], size)) for each in fits for size in range(PERIOD))
    return Notes(tuple(reads[0].structure), tuple([f for f in forms if f is not None]), least, alone)


def _differ(forms: Sequence[Form], sizes: Sizes) -> bool:
    return len(forms) > 1 and len({each.at(sizes) for each in forms}) > 1


def annotate(module: ModuleOp, notes: Notes, symbols: Mapping[str, Range]) -> None:
    """Write the notes on the module of the bound. Raises Refusal if it is not what the notes say of it."""
    bound = {name: high for name, (_, high) in symbols.items()}
    read = _read(module)
    _same_structure(read, notes.structure, [bound])
    values = {size: size.at(bound) for size in set(notes.numbers)}
    wrong = [i for i, (size, n) in enumerate(zip(notes.numbers, read.integers, strict=True)) if values[size] != n]
    if wrong:
        (op, name), number = _place(read, wrong[0]), read.integers[wrong[0]]
        raise Refusal(op, f"{name} is {number} at {bound}; the form of it is {notes.numbers[wrong[0]]}")
    found: dict[Operation, dict[str, list[Form | None]]] = {}
    arguments: list[str] = []
    start = 0
    for op, name, count in read.places:
        forms = notes.numbers[start : start + count]
        start += count
        varying = [None if f.number is not None else f for f in forms]
        if op is None:
            arguments.append(" ".join(STATIC if f is None else str(f) for f in varying))
        elif any(f is not None for f in varying):
            found.setdefault(op, {})[name] = varying
    for op, sizes in found.items():
        set_sizes(op, sizes)
    _annotate_arguments(read.function, arguments)
    set_symbols(module, symbols)


def _annotate_arguments(function: FuncOp, texts: Iterable[str]) -> None:
    attributes = [dict(a.data) for a in function.arg_attrs or ()] or [{} for _ in function.body.block.args]
    for own, text in zip(attributes, texts, strict=True):
        if set(text) - {STATIC, " "}:
            own[SIZES] = StringAttr(text)
    function.arg_attrs = ArrayAttr(map(DictionaryAttr, attributes))


def _same_structure(read: _Read, structure: Sequence[Any], at: Sequence[Sizes]) -> None:
    if tuple(read.structure) == tuple(structure):
        return
    ops = [op for op in read.function.walk() if op is not read.function]
    entries = [i for i, entry in enumerate(read.structure) if entry != END and len(entry) == 4]
    for op, i in zip(ops, entries, strict=True):
        if i >= len(structure) or read.structure[i] != structure[i]:
            raise OtherOps(op, f"another op, or another number that is no size, is there at {dict(at[-1])}")
    raise OtherOps(read.function, "the program has more ops, or other arguments, at some sizes")


def _place(read: _Read, index: int) -> tuple[Operation, str]:
    for op, name, count in read.places:
        if index < count:
            return read.function if op is None else op, name
        index -= count
    raise IndexError(index)


def fitted(numbers: Sequence[int], at: Sequence[Sizes]) -> list[Form]:
    """The forms that are these numbers at these sizes: a polynomial of at most degree 3, or else all quotients of one
    symbol."""
    if len(set(numbers)) == 1:
        return [form(numbers[0])]
    names = list(at[0])
    affine = [form(1), *map(symbol, names)]
    mixed = [symbol(x) * symbol(y) for x, y in combinations(names, 2)]
    squares = [symbol(x) * symbol(x) for x in names]
    cubes = [symbol(x) * symbol(x) * symbol(x) for x in names]
    for basis in (affine, affine + mixed, affine + mixed + squares, affine + mixed + squares + cubes):
        if len(at) <= len(basis):
            break
        matrix = np.array([[term.at(sizes) for term in basis] for sizes in at], float)
        solved, *_ = np.linalg.lstsq(matrix, np.array(numbers, float))
        total = form(0)
        for term, factor in zip(basis, np.round(solved).astype(int), strict=True):
            total = total + term * int(factor)
        if [total.at(sizes) for sizes in at] == list(numbers):
            return [total]
    fits = list(dict.fromkeys(_quotients(numbers, at)))
    return fits if fits or len(at) < CERTAIN else list(dict.fromkeys(_with_rest(numbers, at)))


def _quotients(numbers: Sequence[int], at: Sequence[Sizes]) -> Iterator[Form]:
    """The quotients of one symbol that are these numbers."""
    for name in at[0]:
        for by, factor, rest in QUOTIENTS:
            tried = (symbol(name) * factor + rest) // by
            tried = tried + numbers[0] - tried.at(at[0])
            if all(tried.at(sizes) == number for sizes, number in zip(at, numbers, strict=True)):
                yield tried


def _with_rest(numbers: Sequence[int], at: Sequence[Sizes]) -> Iterator[Form]:
    """Sums of a symbol and of a quotient of it, each some times: what a stride leaves over."""
    for name in at[0]:
        for by in STRIDES:
            for rest in range(by):
                whole = (symbol(name) + rest) // by
                matrix = np.array([[1, sizes[name], whole.at(sizes)] for sizes in at], float)
                solved, *_ = np.linalg.lstsq(matrix, np.array(numbers, float))
                number, some, wholes = np.round(solved).astype(int).tolist()
                tried = symbol(name) * some + whole * wholes + number
                if [tried.at(sizes) for sizes in at] == list(numbers):
                    yield tried
