"""What patterns share: reading constants, and replacing an op by what a `Builder` builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias, TypeVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, number_of

Table: TypeAlias = "dict[type[Operation], tuple[Pattern, ...]]"
Number: TypeAlias = bool | int | float | complex

RECOMPUTE = "lazytpu.recompute"
"Attribute of an op that recomputes a value on purpose; `cse` merges only ops that agree on it."

_Op = TypeVar("_Op", bound=Operation)


class Pattern(RewritePattern):
    """A rewrite of one op that looks at the ops that make its operands."""

    MADE_BY: ClassVar[frozenset[type[Operation]]] = frozenset()
    """Classes of ops of which at least one makes an operand, or the pattern cannot match; empty: it may match anyway.
    Checked before the pattern is tried: of 37,000 tries in a training step of 5,000 ops it leaves 12,000."""


class RewriteBuilder(Builder):
    """Builds before the op being rewritten, with its source line and its recompute mark, and tells the rewriter."""

    def __init__(self, rewritten: Operation, rewriter: PatternRewriter):
        assert rewritten.parent is not None
        super().__init__(rewritten.parent, rewritten)
        self.location = rewritten.location
        self.rewriter = rewriter
        self.recompute = rewritten.attributes.get(RECOMPUTE)

    def op(
        self,
        kind: type[TensorOp],
        operands: Sequence[SSAValue],
        result_types: Sequence[AnyTensorType],
        properties: Mapping[str, Attribute] = {},
    ) -> TensorOp:
        made = kind.create(operands=operands, result_types=result_types, properties=properties, location=self.location)
        if self.recompute is not None:
            made.attributes[RECOMPUTE] = self.recompute
        return self.rewriter.insert(made)


def replace(op: Operation, rewriter: PatternRewriter, build: Callable[[Builder], SSAValue]) -> None:
    """Replace the only result of `op` by what `build` returns: something it built, or a value that was there."""
    value = build(RewriteBuilder(op, rewriter))
    if value.type != op.results[0].type:
        raise TypeError(f"a pattern replaces {op.name} of type {op.results[0].type} by a value of type {value.type}")
    rewriter.replace(op, (), (value,))


def defined_by(value: SSAValue, kind: type[_Op]) -> _Op | None:
    """The op that computes `value`, if it is of exactly this class."""
    owner = value.owner
    return owner if type(owner) is kind else None


def splat(value: SSAValue) -> Number | None:
    """The number that all elements of `value` are, if it is a `constant`."""
    constant = defined_by(value, ConstantOp)
    return None if constant is None else number_of(constant.value)
