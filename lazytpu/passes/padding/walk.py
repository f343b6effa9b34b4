"""The walk over a block: how each value is padded, and the ops that rules put in front of an op, masks above all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir import location
from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.control import RegionOp, YieldOp
from lazytpu.ir.forms import Atom, Form, Symbols, form
from lazytpu.ir.sizes import SIZES, sizes_of
from lazytpu.ir.types import UNSIGNED, dtype_of, is_float, numpy_dtype, shape_of
from lazytpu.passes.errors import describe
from lazytpu.passes.padding.dims import Dim, Number, Refused, sized, static
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


Rule: TypeAlias = "Callable[[Walk, TensorOp], Sequence[Padded] | None]"
"""rule(walk, op) -> the results, in order; None where the rule has replaced the op."""


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


class Walk:
    """The walk over one block. `pack` is the pack of sizes, i32, in the order of the symbols."""

    def __init__(self, shared: Shared, block: Block, pack: SSAValue, rules: Mapping[type[Operation], Rule]):
        self.shared, self.block, self.pack, self.rules = shared, block, pack, rules
        self._numbers: dict[tuple[Form, str], SSAValue] = {}
        self._inside: dict[Dim, SSAValue] = {}
        self._masked: dict[tuple[SSAValue, tuple[object, ...], str], SSAValue] = {}

    def run(self) -> list[SSAValue]:
        """Apply the rules to all ops of the block; returns the values that it ends in."""
        for op in list(self.block.ops):
            if isinstance(op, TensorOp):
                self._apply(op)
            elif isinstance(op, YieldOp) or op.name == "func.return":
                return list(op.operands)
            else:
                raise Refusal(op, "only ops of the dialect have rules; pad-sizes runs before functions are outlined")
        raise ValueError("the block has no end")

    def inside(self, block: Block, entering: Sequence[Padded]) -> list[Padded]:
        """Walk the block of a region; the padding of what it yields. `enter_pack` then lets the pack into regions."""
        pack = block.insert_arg(self.pack.type, len(block.args))
        for argument, padded in zip(block.args, entering, strict=False):
            self.shared.values[argument] = padded
        self.shared.values[pack] = Padded(static(shape_of(pack)))
        return [self.of(value) for value in Walk(self.shared, block, pack, self.rules).run()]

    def enter_pack(self, op: RegionOp) -> None:
        """Make the pack an operand of an op whose regions were walked; not if none of them reads it."""
        if any(region.block.args[-1].first_use for region in op.regions):
            op.operands = [*op.operands, self.pack]
        else:
            for region in op.regions:
                region.block.erase_arg(region.block.args[-1])

    def check_arguments(self, function: Operation, arguments: Sequence[SSAValue]) -> None:
        """Refuse sizes of arguments that do not fit in memory."""
        try:
            for argument in arguments:
                for factor in (factor for dim in self.dims(argument) for factor in dim.factors):
                    self.check_size(factor.true, factor.size)
        except Refused as error:
            raise Refusal(function, str(error)) from error

    def _apply(self, op: TensorOp) -> None:
        try:
            rule = self.rules.get(type(op))
            if rule is None:
                raise Refused("there is no rule for this op")
            self.builder = MaskBuilder(op)
            if self._touched(op):
                results = rule(self, op)
            else:
                results = [Padded(static(shape_of(x))) for x in op.results]
            if results is None:
                return
            self._check(op, results)
            for value, padded in zip(op.results, results, strict=True):
                self.shared.values[value] = padded
            op.attributes.pop(SIZES, None)
        except Refusal:  # of an op in a region
            raise
        except Refused as error:
            raise Refusal(op, str(error)) from error

    def _touched(self, op: TensorOp) -> bool:
        """Whether an op has anything to do with sizes. A constant has, because it fits any padding."""
        known = op.regions or SIZES in op.attributes or isinstance(op, ConstantOp)
        return bool(known) or any(self.of(x).padded for x in op.operands)

    def _check(self, op: TensorOp, results: Sequence[Padded]) -> None:
        """The rule agrees with the types and with the sizes that the op is annotated with, and these fit in memory."""
        for value, padded in zip(op.results, results, strict=True):
            sizes = tuple(dim.size for dim in padded.dims)
            assert sizes == shape_of(value), f"{op.name}: {sizes}, {shape_of(value)}"
            for dim in padded.dims:
                for factor in dim.factors:
                    self.check_size(factor.true, factor.size)
        if "result" in sizes_of(op):
            for dim, expected in zip(results[0].dims, self.forms(op, "result", shape_of(op.results[0])), strict=True):
                if dim.total != expected:
                    raise Refused(
                        f"a dimension of the result has {dim.total} elements, and is annotated with {expected}"
                    )

    def check_size(self, true: Form, size: int) -> None:
        """Refuse a size that is negative, or more than there is in memory, at some sizes of the symbols."""
        low, high = true.range(self.shared.symbols)
        if low < 0 or high > size:
            raise Refused(f"the size {true} is {low} to {high}; expected 0 to {size}, the size in memory")

    def of(self, value: SSAValue) -> Padded:
        return self.shared.values[value]

    def dims(self, value: SSAValue) -> tuple[Dim, ...]:
        return self.shared.values[value].dims

    def forms(self, op: Operation, name: str, numbers: Iterable[int]) -> list[Form]:
        """A list of integers of an op as forms: those it is annotated with, the others as they stand."""
        plain = list(numbers)
        annotated = sizes_of(op).get(name, [None] * len(plain))
        if len(annotated) != len(plain):
            raise Refused(f"{name} is annotated with {len(annotated)} sizes; expected {len(plain)}")
        return [form(n) if f is None else f for n, f in zip(plain, annotated, strict=True)]

    def result_dims(self, op: Operation, free: bool = False) -> list[Dim]:
        """The dimensions of an op's first result, as it is annotated."""
        shape = shape_of(op.results[0])
        return [sized(n, f, free) for n, f in zip(shape, self.forms(op, "result", shape), strict=True)]

    def replace(self, op: Operation, value: SSAValue, padded: Padded) -> None:
        """Put another value in the place of an op's only result."""
        self._check_replaced(op, value, padded)
        op.results[0].replace_all_uses_with(value)
        self.shared.values[value] = padded
        op.detach()
        op.erase()

    def _check_replaced(self, op: Operation, value: SSAValue, padded: Padded) -> None:
        assert value.type == op.results[0].type, f"{op.name}: {value.type}, {op.results[0].type}"
        assert isinstance(op, TensorOp)
        self._check(op, [padded])

    def dim(self, size: int, true: Form) -> Dim:
        """A dimension of `size` elements, of which the first `true` are true. Refuses what does not fit."""
        self.check_size(true, size)
        return sized(size, true)

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


class Refusal(Refused):
    """An op with padding for which there is no rule. Names the op, its source line and the reason."""

    def __init__(self, op: Operation, reason: str):
        super().__init__(f"{reason}\n  {describe(op)}")
        self.op, self.reason, self.line = op.name, reason, location.describe(op.location)


def same(x: Number, y: Number) -> bool:
    """Whether two numbers are one; NaN is itself, and the zeros are one."""
    return x == y or (x != x and y != y)


def identity(kind: str, dtype: str) -> Number:
    """The number that changes no reduction of this kind."""
    if kind in ("max", "min"):
        return lowest(dtype) if kind == "max" else highest(dtype)
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
