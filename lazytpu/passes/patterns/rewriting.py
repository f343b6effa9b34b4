"""Helpers of patterns: reading constants, and replacing an op by ops from a `Builder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias, TypeVar

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, number_of

Table: TypeAlias = "dict[type[Operation], tuple[Pattern, ...]]"
Number: TypeAlias = bool | int | float | complex

RECOMPUTE = "lazytpu.recompute"
"Attribute of ops that recompute a value on purpose; `cse` merges only ops with the same mark."

_Op = TypeVar("_Op", bound=Operation)


class Pattern(RewritePattern):
    """A rewrite of one op that depends on the ops that define its operands."""

    MADE_BY: ClassVar[frozenset[type[Operation]]] = frozenset()
    """Classes of ops, at least one of which must define an operand for the pattern to match; empty for no condition.
    It is checked before the pattern is tried, and leaves 12,000 of 37,000 tries in a training step of 5,000 ops."""


class RewriteBuilder(Builder):
    """Inserts ops through the rewriter, before the op being rewritten and with its source line and recompute mark."""

    def __init__(self, rewritten: Operation, rewriter: PatternRewriter):
        assert rewritten.parent is not None
        super().__init__(rewritten.parent, rewritten)
        self.location = rewritten.location
        self.rewriter = rewriter
        self.recompute = rewritten.attributes.get(RECOMPUTE)

    def insert(self, op: TensorOp) -> None:
        if self.recompute is not None:
            op.attributes[RECOMPUTE] = self.recompute
        self.rewriter.insert(op)


def replace(op: Operation, rewriter: PatternRewriter, build: Callable[[Builder], SSAValue]) -> None:
    """Replace the only result of `op` by the value that `build` returns, newly built or not.

    Raises TypeError when the value has another type."""
    value = build(RewriteBuilder(op, rewriter))
    if value.type != op.results[0].type:
        raise TypeError(f"a pattern replaced {op.name} of type {op.results[0].type} by a value of type {value.type}")
    rewriter.replace(op, (), (value,))


def defined_by(value: SSAValue, kind: type[_Op]) -> _Op | None:
    """The op that defines `value`, if it is of exactly this class."""
    owner = value.owner
    return owner if type(owner) is kind else None


def splat(value: SSAValue) -> Number | None:
    """The number that all elements of `value` are equal to, if it is a `constant`."""
    constant = defined_by(value, ConstantOp)
    return None if constant is None else number_of(constant.value)
