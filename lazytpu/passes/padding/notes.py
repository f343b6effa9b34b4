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
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.forms import Form, Range, form, symbol
from lazytpu.ir.jax_call import JaxCallOp
from lazytpu.ir.sizes import RECIPROCAL, SIZES, STATIC, TWICE, set_sizes, set_symbols
from lazytpu.ir.template import TemplateOp, from_attribute
from lazytpu.ir.types import dtype_of, ints, is_int_array, shape_of
from lazytpu.passes.padding.compound import compound
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
class Reading:
    """A module as its structure and its integers. `places` are the ops with the names and counts of their integers.
    `reciprocals` are constants that are 2 divided by an integer but for rounding, or near to it: the index of the
    integer, the dtype, and the constant itself."""

    function: FuncOp
    structure: list[Any] = field(default_factory=list[Any])
    integers: list[int] = field(default_factory=list[int])
    places: list[tuple[Operation | None, str, int]] = field(default_factory=list[tuple[Operation | None, str, int]])
    known: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    reciprocals: list[tuple[int, str, float]] = field(default_factory=list[tuple[int, str, float]])

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
        sized = op.sized if isinstance(op, TensorOp) else ()
        for name, prop in op.properties.items():
            if isinstance(op, ConstantOp) and name == "value":
                others.append(self._constant(op))
            elif isinstance(op, TemplateOp) and name == "params":
                for each, value in op.params.data.items():
                    others.append(self._integers(op, each, _numbers(value)) if each in sized else (each, str(value)))
            elif is_int_array(prop):
                others.append(self._integers(op, name, ints(prop)) if name in sized else (name, ints(prop)))
            elif isinstance(op, JaxCallOp) and name == "body" and op.padding.data:  # the key is another for each size
                others.append((name, op.body.data.rpartition("_")[0]))
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

    def _integers(self, op: Operation, name: str, numbers: Sequence[int]) -> Any:
        self.add(op, name, numbers)
        return name, len(numbers)

    def _constant(self, op: ConstantOp) -> Any:
        """A whole number may be a size, and 2 divided by one, as in gradients of means; any other is part of the
        structure."""
        number = number_of(op.value)
        if isinstance(number, bool | complex) or not abs(number) < 1 << 31 or repr(number) == "-0.0":
            return repr(number)
        if number != int(number):
            whole = round(TWICE / number)
            if abs(TWICE / number - whole) > NEAR * abs(whole) or not 1 < abs(whole) < 1 << 31:
                return repr(number)
            self.reciprocals.append((len(self.integers), dtype_of(op.results[0]), number))
            self.add(op, RECIPROCAL, (whole,))
            return RECIPROCAL
        self.add(op, "value", (int(number),))
        return "value"


def _numbers(value: Attribute) -> Sequence[int]:
    """The integers of a parameter of a template that may be sizes."""
    number = from_attribute(value)
    return cast("Sequence[int]", number if isinstance(number, tuple) else (number,))


def read(module: ModuleOp) -> Reading:
    """Take a module apart into its structure and its integers."""
    function = next(op for op in module.ops if isinstance(op, FuncOp))
    found = Reading(function)
    for argument in function.body.block.args:
        found.structure.append((dtype_of(argument), len(shape_of(argument))))
        found.add(None, "argument", shape_of(argument))
    found.block(function.body.block)
    return found


def notes_of(readings: Sequence[Reading], at: Sequence[Sizes], beside: Sequence[Sizes] = ()) -> Notes:
    """The notes of one program whose modules at these sizes are given, each with other sizes of the same symbols.

    Raises Refusal where the program differs in more than integers, or one is no form, Unsettled where an integer is
    several forms that differ at some of the sizes `beside`, and Refused where the sizes are too few to tell."""
    for reading in readings[1:]:
        _same_structure(readings[0], reading.structure, at)
    _check_enough(at)
    table = np.array([reading.integers for reading in readings])
    columns, back = np.unique(table, axis=1, return_inverse=True)
    rows: list[list[int]] = columns.T.tolist()
    fits = compound(rows, [fitted(column, at) for column in rows])
    several = [each for each in fits if len(each) > 1]
    if several and beside:
        told = np.sum([_told_apart(each, beside) for each in several], axis=0)
        best = int(np.argmax(told))
        if told[best]:
            raise Unsettled(best, beside[best])
    forms = [next(iter(fits[i]), None) for i in back.reshape(-1).tolist()]
    if None in forms:
        op, name = place(readings[-1], forms.index(None))
        numbers, sizes = table[:, forms.index(None)].tolist(), [dict(each) for each in at]
        raise Refusal(op, f"{name} is {numbers} at the sizes {sizes}, which is no form of these")
    least = {name: min(sizes[name] for sizes in at) for name in at[0]}
    row = [dict.fromkeys(at[0], size) for size in range(PERIOD)]
    alone = any(_told_apart(each, row).any() for each in several)
    return Notes(tuple(readings[0].structure), tuple([f for f in forms if f is not None]), least, alone)


def _check_enough(at: Sequence[Sizes]) -> None:
    """Refuse sizes that leave forms undetermined, or determine them without one size more that checks them: some fit
    by chance."""
    matrix = np.array([[1, *sizes.values()] for sizes in at])
    unknowns = matrix.shape[1]
    if len(at) <= unknowns or np.linalg.matrix_rank(matrix) < unknowns:
        raise Refused(f"the program is known at the sizes {[dict(sizes) for sizes in at]} alone, which show no forms")


def _told_apart(forms: Sequence[Form], at: Sequence[Sizes]) -> np.ndarray:
    """For each of these sizes, how many of the forms are another number there than the one before, in order of these
    numbers."""
    rows = {name: np.array([sizes[name] for sizes in at]) for name in at[0]}
    numbers = np.sort([each.at_all(rows) for each in forms], axis=0)
    return (np.diff(numbers, axis=0) != 0).sum(0)


def annotate(module: ModuleOp, notes: Notes, symbols: Mapping[str, Range], reading: Reading | None = None) -> None:
    """Write the notes on the module of the bound, whose `reading` may be known. Raises Refusal if it is not what the
    notes say of it; nothing is written then."""
    bound = {name: high for name, (_, high) in symbols.items()}
    reading = read(module) if reading is None else reading
    _same_structure(reading, notes.structure, [bound])
    values = {size: size.at(bound) for size in set(notes.numbers)}
    wrong = [i for i, (size, n) in enumerate(zip(notes.numbers, reading.integers, strict=True)) if values[size] != n]
    if wrong:
        (op, name), number = place(reading, wrong[0]), reading.integers[wrong[0]]
        raise Refusal(op, f"{name} is {number} at {bound}; the form of it is {notes.numbers[wrong[0]]}")
    found: dict[Operation, dict[str, list[Form | None]]] = {}
    arguments: list[str] = []
    start = 0
    for op, name, count in reading.places:
        forms = notes.numbers[start : start + count]
        start += count
        varying = [None if f.number is not None else f for f in forms]
        if op is None:
            arguments.append(" ".join(STATIC if f is None else str(f) for f in varying))
        elif any(f is not None for f in varying):
            found.setdefault(op, {})[name] = varying
    for op, sizes in found.items():
        set_sizes(op, sizes)
    _annotate_arguments(reading.function, arguments)
    set_symbols(module, symbols)


def _annotate_arguments(function: FuncOp, texts: Iterable[str]) -> None:
    attributes = [dict(a.data) for a in function.arg_attrs or ()] or [{} for _ in function.body.block.args]
    for own, text in zip(attributes, texts, strict=True):
        if set(text) - {STATIC, " "}:
            own[SIZES] = StringAttr(text)
    function.arg_attrs = ArrayAttr(map(DictionaryAttr, attributes))


def _same_structure(reading: Reading, structure: Sequence[Any], at: Sequence[Sizes]) -> None:
    if tuple(reading.structure) == tuple(structure):
        return
    for op, i in entries_of(reading):
        if i >= len(structure) or reading.structure[i] != structure[i]:
            raise OtherOps(op, f"another op, or another number that is no size, is there at {dict(at[-1])}")
    raise OtherOps(reading.function, "the program has more ops, or other arguments, at some sizes")


def entries_of(reading: Reading) -> Iterator[tuple[Operation, int]]:
    """The ops of a module, and the index of each one in its structure."""
    ops = [op for op in reading.function.walk() if op is not reading.function]
    entries = [i for i, entry in enumerate(reading.structure) if entry != END and len(entry) == 4]
    yield from zip(ops, entries, strict=True)


def place(reading: Reading, index: int) -> tuple[Operation, str]:
    """The op that has the integer with this index, and what the integer is of it."""
    for op, name, count in reading.places:
        if index < count:
            return reading.function if op is None else op, name
        index -= count
    raise IndexError(index)


def fitted(numbers: Sequence[int], at: Sequence[Sizes]) -> list[Form]:
    """The forms that are these numbers at these sizes: a polynomial of at most degree 3, or else all quotients of one
    symbol, or all sums of that and of a quotient. Those made of other forms are `compound`."""
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
    return fits if fits or len(at) < CERTAIN else sorted(set(_with_rest(numbers, at)), key=_spelling)


def _spelling(size: Form) -> tuple[int, str]:
    """What comes first of equal forms: 3*(n+1)/2, as rules multiply sizes, before 3*n-3*(n)/2."""
    return len(size.terms), str(size)


def _quotients(numbers: Sequence[int], at: Sequence[Sizes]) -> Iterator[Form]:
    """The quotients of one symbol that are these numbers."""
    by, factor, rest = np.array(QUOTIENTS).T[..., None]
    for name in at[0]:
        tried = (factor * [sizes[name] for sizes in at] + rest) // by
        fits = (tried - tried[:, :1] == np.array(numbers) - numbers[0]).all(1)
        for i in np.flatnonzero(fits).tolist():
            quotient = (symbol(name) * QUOTIENTS[i][1] + QUOTIENTS[i][2]) // QUOTIENTS[i][0]
            yield quotient + numbers[0] - quotient.at(at[0])


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
