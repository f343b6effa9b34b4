"""What rules put in front of an op: sizes of the run as numbers, and masks of the padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from xdsl.ir import Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import Atom, Form, Symbols, form
from lazytpu.ir.types import UNSIGNED, dtype_of, is_float, numpy_dtype, shape_of
from lazytpu.passes.padding.dims import Dim, Number, Refused, sized
from lazytpu.passes.patterns.rewriting import RECOMPUTE


@dataclass(frozen=True)
class Padded:
    """A value: its dimensions, and the number that all of its padding holds; None if that is anything, NaN included."""

    dims: tuple[Dim, ...]
    fill: Number | None = None

    @property
    def padded(self) -> bool:
        return any(dim.padded for dim in self.dims)


@dataclass
class Shared:
    """What the walks over all blocks of a module share."""

    symbols: Symbols
    values: dict[SSAValue, Padded] = field(default_factory=dict[SSAValue, Padded])
    masks: int = 0
    "Operands that were masked."
    moves: int = 0
    "Values that were gathered into another arrangement."


class MaskBuilder(Builder):
    """Inserts before an op, with its source line and recompute mark."""

    def __init__(self, op: Operation):
        assert op.parent is not None
        super().__init__(op.parent, op)
        self.location = op.location
        self.recompute = op.attributes.get(RECOMPUTE)

    def insert(self, op: TensorOp) -> None:
        if self.recompute is not None:
            op.attributes[RECOMPUTE] = self.recompute
        super().insert(op)


class Masks:
    """Numbers and masks in one block, made by `builder` before the op that needs them. `pack` is the pack of sizes,
    i32, in the order of the symbols."""

    builder: MaskBuilder

    def __init__(self, shared: Shared, pack: SSAValue):
        self.shared, self.pack = shared, pack
        self._numbers: dict[tuple[Form, str], SSAValue] = {}
        self._inside: dict[Dim, SSAValue] = {}
        self._masked: dict[tuple[SSAValue, tuple[object, ...], str], SSAValue] = {}

    def of(self, value: SSAValue) -> Padded:
        return self.shared.values[value]

    def dims(self, value: SSAValue) -> tuple[Dim, ...]:
        return self.shared.values[value].dims

    def check_symbols(self, size: Form) -> None:
        """Refuse a size of a symbol that the module does not name."""
        unknown = sorted(size.symbols - self.shared.symbols.keys())
        if unknown:
            known = ", ".join(self.shared.symbols)
            raise Refused(f"the size {size} has the symbol {unknown[0]}; those of the module are {known}")

    def check_size(self, true: Form, size: int) -> None:
        """Refuse a size that is negative, or more than there is in memory, at some sizes of the symbols."""
        self.check_symbols(true)
        low, high = true.range(self.shared.symbols)
        if low < 0 or high > size:
            raise Refused(f"the size {true} is {low} to {high}; expected 0 to {size}, the size in memory")

    def dim(self, size: int, true: Form) -> Dim:
        """A dimension of `size` elements, of which the first `true` are true. Refuses what does not fit."""
        self.check_size(true, size)
        return sized(size, None if true.same(form(size)) else true)

    def zero(self, like: SSAValue) -> SSAValue:
        """The 0-d zero of a value's dtype."""
        return self.builder.constant(0, dtype_of(like))

    def number(self, size: Form, dtype: str = "i32") -> SSAValue:
        """A size as a 0-d number of a dtype. Ops of the block are rewritten in order, so that what was computed before
        an earlier one serves here too."""
        known = self._numbers.get((size, dtype))
        if known is None:
            low, high = size.range(self.shared.symbols)
            if low < -(1 << 31) or high >= 1 << 31:
                raise Refused(f"the size {size} is up to {high}, which does not fit 32 bits")
            known = self._sum(size) if dtype == "i32" else self.builder.convert(self.number(size), dtype)
            self._numbers[size, dtype] = known
        return known

    def _sum(self, size: Form) -> SSAValue:
        b = self.builder
        total: SSAValue | None = None
        for atoms, factor in size.terms:
            term = b.constant(factor, "i32") if factor != 1 or not atoms else None
            for atom in atoms:
                value = self._atom(atom)
                term = value if term is None else b.mul(term, value)
            assert term is not None
            total = term if total is None else b.add(total, term)
        return b.constant(0, "i32") if total is None else total

    def _atom(self, atom: Atom) -> SSAValue:
        b = self.builder
        if isinstance(atom, str):
            return b.number(self.pack, list(self.shared.symbols).index(atom))
        # Integers are divided toward zero, so that what may be negative is made positive first.
        low, _ = atom.form.range(self.shared.symbols)
        shift = max(0, -(low // atom.by))
        quotient = b.div(self.number(atom.form + shift * atom.by), b.constant(atom.by, "i32"))
        return b.sub(quotient, b.constant(shift, "i32")) if shift else quotient

    def mask(self, dims: Sequence[Dim], only: Iterable[int]) -> SSAValue | None:
        """An i1 of these dimensions: whether an element is true along the dimensions `only`. None if all are."""
        b, shape = self.builder, [dim.size for dim in dims]
        made: SSAValue | None = None
        for i in only:
            if dims[i].padded:
                inside = b.broadcast_in_dim(self._along(dims[i]), shape, (i,))
                made = inside if made is None else b.and_(made, inside)
        return made

    def _along(self, dim: Dim) -> SSAValue:
        """A 1-D i1: which elements of a dimension are true. The digit of each padded factor is below its true size."""
        key = Dim(dim.factors)
        if key in self._inside:
            return self._inside[key]
        b, shape, inner = self.builder, (dim.size,), 1
        made: SSAValue | None = None
        for i, factor in reversed(list(enumerate(dim.factors))):
            if factor.padded:
                digit = b.iota("i32", shape, 0)
                if inner > 1:
                    digit = b.div(digit, b.constant(inner, "i32", shape))
                if i > 0:
                    digit = b.binary("rem", digit, b.constant(factor.size, "i32", shape))
                inside = b.compare("LT", digit, b.broadcast_in_dim(self.number(factor.true), shape, ()))
                made = inside if made is None else b.and_(made, inside)
            inner *= factor.size
        assert made is not None
        self._inside[key] = made
        return made

    def masked(self, value: SSAValue, only: Iterable[int], fill: Number, dims: Sequence[Dim] | None = None) -> SSAValue:
        """The value with `fill` in the padding along the dimensions `only`; `dims` are another arrangement of free
        ones."""
        padded = self.of(value)
        if dims is not None and tuple(dims) != padded.dims:
            padded = Padded(tuple(dims))
        chosen = tuple(i for i in only if padded.dims[i].padded)
        if not chosen or (padded.fill is not None and same(padded.fill, fill)):
            return value
        key = value, tuple((i, padded.dims[i].factors) for i in chosen), repr(fill)
        if key not in self._masked:
            mask = self.mask(padded.dims, chosen)
            assert mask is not None
            other = self.builder.constant(fill, dtype_of(value), shape_of(value))
            made = self.builder.select(mask, value, other)
            everywhere = all(i in chosen for i, dim in enumerate(padded.dims) if dim.padded)
            self.shared.values[made] = Padded(padded.dims, fill if everywhere else None)
            self.shared.masks += 1
            self._masked[key] = made
        return self._masked[key]

    def mask_operand(
        self, op: Operation, index: int, only: Iterable[int], fill: Number, dims: Sequence[Dim] | None = None
    ) -> None:
        """Mask an operand of an op in place."""
        op.operands[index] = self.masked(op.operands[index], only, fill, dims)


def same(x: Number, y: Number) -> bool:
    """Whether two numbers are one; NaN is itself, and the zeros are one."""
    return x == y or (x != x and y != y)


def identity(kind: str, dtype: str) -> Number:
    """The number that changes no reduction of this kind."""
    if kind in ("max", "min", "peak"):
        return highest(dtype) if kind == "min" else lowest(dtype)
    if dtype == "i1":
        return kind in ("mul", "and")
    return {"add": 0, "mul": 1, "and": -1, "or": 0}[kind] if dtype not in UNSIGNED or kind != "and" else highest(dtype)


def lowest(dtype: str) -> Number:
    """The least number of a dtype, -inf for floats."""
    if dtype == "i1":
        return False
    return -inf if is_float(dtype) else int(np.iinfo(numpy_dtype(dtype)).min)


def highest(dtype: str) -> Number:
    """The greatest number of a dtype, inf for floats."""
    if dtype == "i1":
        return True
    return inf if is_float(dtype) else int(np.iinfo(numpy_dtype(dtype)).max)
