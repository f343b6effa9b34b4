"""The walk over a block that determines the padding of each value, by the rule of each op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir import location
from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import ConstantOp
from lazytpu.ir.control import RegionOp, YieldOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.forms import Form, form
from lazytpu.ir.sizes import SIZES, sizes_of
from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import shape_of
from lazytpu.passes.errors import describe
from lazytpu.passes.padding.arranging import in_a_row, rearranged
from lazytpu.passes.padding.dims import Dim, Refused, sized
from lazytpu.passes.padding.masks import MaskBuilder, Masks, Padded, Shared, without_padding

Op = TypeVar("Op", bound=TensorOp)
Result: TypeAlias = "Sequence[Padded] | None"
"""The padding of an op's results in order, or None if its rule has replaced the op."""
RULES: dict[type[TensorOp], Callable[[Walk, Any], Result]] = {}
"""The rules of the ops of the dialect."""


def rule(*kinds: type[Op]) -> Callable[[Callable[[Walk, Op], Result]], Callable[[Walk, Op], Result]]:
    """Register the rule of these ops and their subclasses."""

    def register(function: Callable[[Walk, Op], Result]) -> Callable[[Walk, Op], Result]:
        RULES.update((op, function) for op in OPS.values() if issubclass(op, kinds))
        return function

    return register


class Walk(Masks):
    """The walk over one block."""

    def __init__(self, shared: Shared, block: Block, pack: SSAValue):
        super().__init__(shared, pack)
        self.block = block
        self._in_rows: dict[SSAValue, SSAValue] = {}
        self._sizes: Mapping[str, Sequence[Form | None]] = {}
        "Annotations of the current op."
        self._unread: set[str] = set()
        "The names of those that its rule has not read."

    def run(self) -> list[SSAValue]:
        """Apply the rules to all ops of the block. Return the operands of its terminator."""
        for op in self.block.ops:  # rules insert ops before theirs
            if isinstance(op, TensorOp):
                self._apply(op)
            elif isinstance(op, YieldOp) or op.name == "func.return":
                return list(op.operands)
            else:
                raise Refusal(op, "only ops of the dialect have rules; pad-sizes runs before functions are outlined")
        raise ValueError("the block has no end")

    def inside(self, block: Block, entering: Sequence[Padded]) -> list[Padded]:
        """Walk the block of a region and return the padding of the values it yields. Call `enter_pack` afterwards."""
        pack = block.insert_arg(self.pack.type, len(block.args))
        for argument, padded in zip(block.args, entering, strict=False):
            self.shared.values[argument] = padded
        self.shared.values[pack] = without_padding(shape_of(pack))
        return [self.of(value) for value in Walk(self.shared, block, pack).run()]

    def enter_pack(self, op: RegionOp) -> None:
        """Pass the pack as an operand to an op whose regions were walked, unless no region reads it."""
        if any(region.block.args[-1].first_use for region in op.regions):
            op.operands = [*op.operands, self.pack]
        else:
            for region in op.regions:
                region.block.erase_arg(region.block.args[-1])

    def check_arguments(self, function: Operation, arguments: Sequence[SSAValue]) -> None:
        """Raise Refusal for sizes of arguments that may exceed memory."""
        try:
            for argument in arguments:
                for factor in (factor for dim in self.dims(argument) for factor in dim.factors):
                    self.check_size(factor.true, factor.size)
        except Refused as error:
            raise Refusal(function, str(error)) from error

    def _apply(self, op: TensorOp) -> None:
        try:
            rule = RULES.get(type(op))
            if rule is None:
                raise Refused("there is no rule for this op")
            if not self._touched(op):
                for value in op.results:
                    self.shared.values[value] = without_padding(shape_of(value))
                return
            self.builder = MaskBuilder(op)
            self._sizes = sizes_of(op)
            self._unread = {name for name, sizes in self._sizes.items() if any(size is not None for size in sizes)}
            results = self._results(op, rule)
            if results is not None:
                self._check(op, results)
                for value, padded in zip(op.results, results, strict=True):
                    self.shared.values[value] = padded
                op.attributes.pop(SIZES, None)
            if self._unread:
                raise Refused(f"{min(self._unread)} is annotated with a size, which the rule of the op does not read")
        except Refusal:  # raised for an op in a region
            raise
        except Refused as error:
            raise Refusal(op, str(error)) from error

    def _results(self, op: TensorOp, rule: Callable[[Walk, Any], Result]) -> Result:
        """Return the padding that the rule computes. If the rule refuses merged dimensions, apply it again to
        rearranged operands."""
        try:
            return rule(self, op)
        except Refused:
            merged = [i for i, x in enumerate(op.operands) if any(in_a_row(dim) != dim for dim in self.dims(x))]
            if op.regions or not merged:
                raise
        for i in merged:
            op.operands[i] = self._in_a_row(op.operands[i])
        return rule(self, op)

    def _in_a_row(self, value: SSAValue) -> SSAValue:
        """Return a value rearranged so that true elements come first in each dimension."""
        if value not in self._in_rows:
            source = self.dims(value)
            target = tuple([in_a_row(dim) for dim in source])
            rearranged_value = self._in_rows[value] = rearranged(self, value, source, target)
            self.shared.values[rearranged_value] = Padded(target)
        return self._in_rows[value]

    def _touched(self, op: TensorOp) -> bool:
        """Return whether sizes concern an op. They concern a constant, which is compatible with any padding."""
        if op.regions or SIZES in op.attributes or isinstance(op, ConstantOp):
            return True
        values = self.shared.values
        return any(values[x].padded for x in op.operands)

    def _check(self, op: TensorOp, results: Sequence[Padded]) -> None:
        """Check that the rule's result agrees with the types and the annotations of an op, and fits in memory.

        Raise Refused if not.
        """
        for value, padded in zip(op.results, results, strict=True):
            sizes = tuple(dim.size for dim in padded.dims)
            assert sizes == shape_of(value), f"{op.name}: {sizes}, {shape_of(value)}"
            for dim in padded.dims:
                for factor in dim.factors:
                    self.check_size(factor.true, factor.size)
        if "result" in self._sizes:
            for dim, expected in zip(results[0].dims, self.forms(op, "result", shape_of(op.results[0])), strict=True):
                self.check_annotated(dim, expected)

    def check_annotated(self, dim: Dim, expected: Form) -> None:
        """Raise Refused if a dimension of a result has another number of elements than its annotation says."""
        # Two expressions may be equal at all sizes, such as n-(n+1)/2 and n/2.
        if dim.total != expected and (dim.total - expected).range(self.shared.symbols) != (0, 0):
            raise Refused(f"a dimension of the result has {dim.total} elements, and is annotated with {expected}")

    def forms(self, op: Operation, name: str, numbers: Iterable[int]) -> list[Form]:
        """Return a list of integers of an op as size expressions: annotated ones, or constants."""
        plain = list(numbers)
        annotated = self.annotated(op, name, len(plain))
        return [form(n) if f is None else f for n, f in zip(plain, annotated, strict=True)]

    def annotated(self, op: Operation, name: str, count: int) -> Sequence[Form | None]:
        """Return the annotated sizes of `count` integers of an op, with None for constants.

        Annotations that a rule does not read are refused.
        """
        annotated = self._sizes.get(name, [None] * count)
        if len(annotated) != count:
            raise Refused(f"{name} is annotated with {len(annotated)} sizes; expected {count}")
        for size in annotated:
            if size is not None:
                self.check_symbols(size)
        self._unread.discard(name)
        return annotated

    def result_dims(self, op: Operation, free: bool = False) -> list[Dim]:
        """Return the annotated dimensions of an op's first result."""
        shape = shape_of(op.results[0])
        return [sized(n, f, free) for n, f in zip(shape, self.forms(op, "result", shape), strict=True)]

    def replace(self, op: Operation, value: SSAValue, padded: Padded) -> None:
        """Replace an op's only result by another value and erase the op."""
        assert isinstance(op, TensorOp)
        assert value.type == op.results[0].type, f"{op.name}: {value.type}, {op.results[0].type}"
        self._check(op, [padded])
        op.results[0].replace_all_uses_with(value)
        self.shared.values[value] = padded
        op.detach()
        op.erase()


class Refusal(Refused):
    """Raised for an op whose padding no rule handles. It has the op, its source line and the reason. `place` names the
    op as users do: `fft` at train.py:5."""

    def __init__(self, op: Operation, reason: str):
        super().__init__(f"{reason}\n  {describe(op)}")
        self.op, self.reason, self.line = op.name, reason, location.describe(op.location)
        name = op.template_name.data if isinstance(op, TemplateOp) else op.name.removeprefix("lazytpu.")
        self.place = f"`{name}`" + (f" at {self.line}" if self.line else "")
