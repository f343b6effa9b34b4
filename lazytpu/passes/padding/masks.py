"""Run-time sizes as numbers, and masks of padding, which rules insert before an op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce

from xdsl.ir import Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import Atom, Form, Symbols, form
from lazytpu.ir.types import bitwidth, dtype_of, shape_of
from lazytpu.passes.padding.dims import Dim, Number, Refused, sized, static
from lazytpu.passes.patterns.rewriting import RECOMPUTE


@dataclass(frozen=True)
class Padded:
    """The padding of a value: its dimensions, and the number that all of its padding holds. `fill` None means any
    number, NaN included."""

    dims: tuple[Dim, ...]
    fill: Number | None = None

    @cached_property
    def padded(self) -> bool:
        return any(dim.padded for dim in self.dims)


@lru_cache(maxsize=4096)
def without_padding(shape: Sequence[int]) -> Padded:
    """Return the padding of a value of this shape that has none."""
    return Padded(static(shape))


@dataclass
class Shared:
    """State shared by the walks over all blocks of a module."""

    symbols: Symbols
    values: dict[SSAValue, Padded] = field(default_factory=dict[SSAValue, Padded])
    checked: set[tuple[Form, int]] = field(default_factory=set[tuple[Form, int]])
    """True sizes that fit in a size in memory."""
    masks: int = 0
    """Number of masked operands."""
    moves: int = 0
    """Number of values gathered into another arrangement."""


class MaskBuilder(Builder):
    """Inserts ops before an op, with its source line and recompute mark."""

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
    """Run-time sizes and masks in one block, inserted by `builder` before the op that needs them. `pack` is the pack of
    sizes, i32 in the order of the symbols."""

    builder: MaskBuilder

    def __init__(self, shared: Shared, pack: SSAValue):
        self.shared, self.pack = shared, pack
        self._numbers: dict[tuple[Form, str], SSAValue] = {}
        self._inside: dict[Dim, SSAValue] = {}
        self._masked: dict[tuple[SSAValue, tuple[object, ...], str], SSAValue] = {}

    def of(self, value: SSAValue) -> Padded:
        """Return the padding of a value."""
        return self.shared.values[value]

    def dims(self, value: SSAValue) -> tuple[Dim, ...]:
        """Return the dimensions of a value."""
        return self.shared.values[value].dims

    def check_symbols(self, size: Form) -> None:
        """Raise Refused for a size with a symbol that the module does not declare."""
        unknown = sorted(size.symbols - self.shared.symbols.keys())
        if unknown:
            declared = ", ".join(self.shared.symbols)
            raise Refused(f"the size {size} has the symbol {unknown[0]}; those of the module are {declared}")

    def check_size(self, true: Form, size: int) -> None:
        """Raise Refused for a size that can be negative, or more than the size in memory."""
        if (true, size) in self.shared.checked:
            return
        self.check_symbols(true)
        low, high = true.range(self.shared.symbols)
        if low < 0 or high > size:
            raise Refused(f"the size {true} is {low} to {high}; expected 0 to {size}, the size in memory")
        self.shared.checked.add((true, size))

    def dim(self, size: int, true: Form) -> Dim:
        """Return a dimension of `size` elements, with the first `true` elements true. Raise Refused if they may not
        fit."""
        self.check_size(true, size)
        return sized(size, None if true.same(form(size)) else true)

    def zero(self, like: SSAValue) -> SSAValue:
        """Return the 0-d zero of a value's dtype."""
        return self.builder.constant(0, dtype_of(like))

    def number(self, size: Form, dtype: str = "i32") -> SSAValue:
        """Return a size as a 0-d number of a dtype.

        Ops of a block are rewritten in order, so a number computed before an earlier op is reused.
        """
        cached = self._numbers.get((size, dtype))
        if cached is None:
            low, high = size.range(self.shared.symbols)
            if low < -(1 << 31) or high >= 1 << 31:
                raise Refused(f"the size {size} is up to {high}, which does not fit 32 bits")
            cached = self._sum(size) if dtype == "i32" else self.builder.convert(self.number(size), dtype)
            self._numbers[size, dtype] = cached
        return cached

    def filled(self, size: Form | int, shape: Sequence[int], dtype: str = "i32") -> SSAValue:
        """Return a value of this shape whose elements are all a size."""
        constant = form(size).number
        if constant is not None:
            return self.builder.constant(constant, dtype, shape)
        number = self.number(form(size), dtype)
        return self.builder.broadcast_in_dim(number, shape, ()) if shape else number

    def wide(self, indices: SSAValue) -> SSAValue:
        """Return indices in a dtype that can represent every size, and -1."""
        return self.builder.convert(indices, "i32") if bitwidth(dtype_of(indices)) < 32 else indices

    def at_most(self, indices: SSAValue, last: Form) -> SSAValue:
        """Return wide indices clamped to `last`."""
        return self.builder.min(indices, self.filled(last, shape_of(indices), dtype_of(indices)))

    def renumbered(self, places: SSAValue, sizes: Sequence[Form | int], targets: Sequence[Form | int]) -> SSAValue:
        """Return for row-major places in an array of these sizes the places of the same elements in one of the sizes
        `targets`."""
        b, shape, dtype = self.builder, shape_of(places), dtype_of(places)
        terms, stride = list[SSAValue](), form(1)
        for i, (size, target) in reversed(list(enumerate(zip(sizes, targets, strict=True)))):
            digit = places
            if i:
                divisor = self.filled(size, shape, dtype)
                if form(size).number is None:
                    divisor = b.max(divisor, self.filled(1, shape, dtype))  # there may be no elements
                digit, places = b.binary("rem", places, divisor), b.div(places, divisor)
            terms.append(digit if stride == form(1) else b.mul(digit, self.filled(stride, shape, dtype)))
            stride = stride * target
        return reduce(b.add, terms or [self.filled(0, shape, dtype)])

    def _sum(self, size: Form) -> SSAValue:
        b = self.builder
        terms = list[SSAValue]()
        for atoms, factor in size.terms:
            factors = [b.constant(factor, "i32")] if factor != 1 or not atoms else []
            terms.append(reduce(b.mul, [*factors, *map(self._atom, atoms)]))
        return reduce(b.add, terms or [b.constant(0, "i32")])

    def _atom(self, atom: Atom) -> SSAValue:
        b = self.builder
        if isinstance(atom, str):
            return b.number(self.pack, list(self.shared.symbols).index(atom))
        # Division truncates toward zero, so a possibly negative dividend is shifted to be positive first.
        low, _ = atom.form.range(self.shared.symbols)
        shift = max(0, -(low // atom.by))
        quotient = b.div(self.number(atom.form + shift * atom.by), b.constant(atom.by, "i32"))
        return b.sub(quotient, b.constant(shift, "i32")) if shift else quotient

    def mask(self, dims: Sequence[Dim], only: Iterable[int]) -> SSAValue | None:
        """Return an i1 of these dimensions: whether an element is true along the dimensions `only`. None if all are."""
        b, shape = self.builder, [dim.size for dim in dims]
        masks = [b.broadcast_in_dim(self._along(dims[i]), shape, (i,)) for i in only if dims[i].padded]
        return reduce(b.and_, masks) if masks else None

    def _along(self, dim: Dim) -> SSAValue:
        """Return a 1-D i1: which elements of a dimension are true. The digit of each padded factor is below its true
        size."""
        key = Dim(dim.factors)
        if key in self._inside:
            return self._inside[key]
        b, shape, inner, masks = self.builder, (dim.size,), 1, list[SSAValue]()
        for i, factor in reversed(list(enumerate(dim.factors))):
            if factor.padded:
                digit = b.iota("i32", shape, 0)
                if inner > 1:
                    digit = b.div(digit, b.constant(inner, "i32", shape))
                if i > 0:
                    digit = b.binary("rem", digit, b.constant(factor.size, "i32", shape))
                masks.append(b.compare("LT", digit, self.filled(factor.true, shape)))
            inner *= factor.size
        self._inside[key] = reduce(b.and_, masks)
        return self._inside[key]

    def masked(self, value: SSAValue, only: Iterable[int], fill: Number, dims: Sequence[Dim] | None = None) -> SSAValue:
        """Return the value with `fill` in the padding along the dimensions `only`. `dims` are another arrangement of
        free ones."""
        padded = self.of(value)
        if dims is not None and tuple(dims) != padded.dims:
            padded = Padded(tuple(dims))
        chosen = tuple(i for i in only if padded.dims[i].padded)
        if not chosen or (padded.fill is not None and same(padded.fill, fill)):
            return value
        key = value, tuple((i, padded.dims[i].factors) for i in chosen), repr(fill)
        if key not in self._masked:
            mask = self.mask(padded.dims, chosen)
            filler = self.builder.constant(fill, dtype_of(value), shape_of(value))
            everywhere = all(i in chosen for i, dim in enumerate(padded.dims) if dim.padded)
            self._masked[key] = self.selected(mask, value, filler, Padded(padded.dims, fill if everywhere else None))
        return self._masked[key]

    def selected(self, mask: SSAValue | None, value: SSAValue, other: SSAValue, padded: Padded) -> SSAValue:
        """Return a value with the elements of `other` where a mask is false; it is `padded` then."""
        if mask is None:
            return value
        result = self.builder.select(mask, value, other)
        self.shared.values[result] = padded
        self.shared.masks += 1
        return result

    def mask_operand(
        self, op: Operation, index: int, only: Iterable[int], fill: Number, dims: Sequence[Dim] | None = None
    ) -> None:
        """Mask an operand of an op in place."""
        op.operands[index] = self.masked(op.operands[index], only, fill, dims)


def same(x: Number, y: Number) -> bool:
    """Return whether two numbers are equal; NaN equals itself, and both zeros are equal."""
    return x == y or (x != x and y != y)
