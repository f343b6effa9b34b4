"""`canonicalize`: simplify algebraically, and give equal computations one form.

    %0 = lazytpu.transpose %w [1, 0]
    %1 = lazytpu.dot_general %x, %0 lhs_contract = [1] rhs_contract = [0]
    %2 = lazytpu.constant 1.0
    %3 = lazytpu.mul %1, %2
    ->
    %3 = lazytpu.dot_general %x, %w lhs_contract = [1] rhs_contract = [1]

The patterns are in `patterns/`, by family. They are applied to every op, then to the ops they build and their users,
until none matches; dead ops are erased along the way.

Needs: nothing. Guarantees: the same bits for every input (patterns/__init__.py defines exactness); the ops that replace
an op carry its source line and recompute mark; the pass is idempotent.

The driver is xDSL's `PatternRewriteWalker`. Patterns are looked up by the class of the op and the classes of the ops
that define its operands, so that few are tried: see `Pattern.MADE_BY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern

from lazytpu.ir.base import TensorOp
from lazytpu.passes.errors import note_op
from lazytpu.passes.patterns import (
    algebra,
    broadcasts,
    choice,
    contractions,
    control,
    conversions,
    indexing,
    moves,
    positions,
    reductions,
    rows,
    shape,
)
from lazytpu.passes.patterns.rewriting import Table

FAMILIES = (
    algebra,
    choice,
    control,
    conversions,
    shape,
    broadcasts,
    moves,
    reductions,
    contractions,
    indexing,
    positions,
    rows,
)


@dataclass(frozen=True)
class CanonicalizePass(ModulePass):
    """Applies all patterns until none matches."""

    name = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(ByClass(patterns())).rewrite_module(op)


@cache
def patterns() -> Table:
    """Class of op -> its patterns, of all families."""
    table: Table = {}
    for family in FAMILIES:
        for kind, family_patterns in family.PATTERNS.items():
            table[kind] = table.get(kind, ()) + family_patterns
    return table


@dataclass(frozen=True)
class ByClass(RewritePattern):
    """Applies the first matching pattern of the op's class."""

    table: Table

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if isinstance(op, TensorOp) and all(result.first_use is None for result in op.results):
            rewriter.erase(op)
            return
        definers = {type(x.owner) for x in op.operands}
        for pattern in self.table.get(type(op), ()):
            if pattern.MADE_BY and pattern.MADE_BY.isdisjoint(definers):
                continue
            try:
                pattern.match_and_rewrite(op, rewriter)
            except Exception as error:
                note_op(error, op)
                raise
            if rewriter.has_done_action:
                return
