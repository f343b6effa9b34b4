"""Patterns of branches with a constant condition, of loops that run at most once, and of unneeded region operands."""

from __future__ import annotations

from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from lazytpu.ir.constants import ConstantOp, DenseConstantOp, scalar
from lazytpu.ir.control import IfOp, RegionOp, WhileOp, end_of
from lazytpu.passes.patterns.rewriting import Pattern, RewriteBuilder, Table, defined_by, splat
from lazytpu.passes.patterns.trips import trips
from lazytpu.passes.regions import trim, without

CONSTANTS = (ConstantOp, DenseConstantOp)


class KnownBranch(Pattern):
    """if(true, x) -> the ops of `then`."""

    MADE_BY = frozenset((ConstantOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: IfOp, rewriter: PatternRewriter, /) -> None:
        condition = splat(op.operands[0])
        if condition is not None:
            _inline(op, op.regions[0 if condition else 1].block, rewriter)


class FewTrips(Pattern):
    """A loop that never runs is replaced by its operands, and a loop that runs once by its body."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: WhileOp, rewriter: PatternRewriter, /) -> None:
        count = trips(op)
        if count == 0:
            rewriter.replace(op, (), op.operands[: op.count])
        elif count == 1:
            _inline(op, op.regions[1].block, rewriter)


def _inline(op: RegionOp, block: Block, rewriter: PatternRewriter) -> None:
    """Replace an op by the ops of one of its regions."""
    end = end_of(block)
    rewriter.inline_block(block, InsertPoint.before(op), list(op.entering))
    results = list(end.operands)
    rewriter.erase(end)
    rewriter.replace(op, (), results)


class EnteringConstants(Pattern):
    """A constant that enters regions is cloned into them, where other patterns see its value. A branch also sees its
    condition as a constant."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: RegionOp, rewriter: PatternRewriter, /) -> None:
        for i, value in _invariants(op):
            arguments = [region.block.args[i] for region in op.regions]
            if all(argument.first_use is None for argument in arguments):
                continue
            if isinstance(value.owner, CONSTANTS):
                for argument in arguments:
                    _set(argument, value.owner.clone(), rewriter)
            elif isinstance(op, IfOp) and value is op.operands[0]:
                for argument, truth in zip(arguments, (True, False), strict=True):
                    constant = ConstantOp.create(result_types=[value.type], properties={"value": scalar(truth, "i1")})
                    _set(argument, constant, rewriter)
            else:
                continue
            rewriter.notify_op_modified(op)


def _set(argument: BlockArgument, constant: Operation, rewriter: PatternRewriter) -> None:
    """Replace the uses of an argument by a new constant at the start of its block."""
    if argument.first_use is not None:
        rewriter.insert(constant, InsertPoint.at_start(argument.block))
        rewriter.replace_all_uses_with(argument, constant.results[0])


def _invariants(op: RegionOp) -> list[tuple[int, SSAValue]]:
    """Return the entering values that no loop carries, with their numbers."""
    first = op.count if isinstance(op, WhileOp) else 0
    return list(enumerate(op.entering))[first:]


class EnteringTwice(Pattern):
    """if(c, x, x) -> if(c, x): a value enters only once."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: RegionOp, rewriter: PatternRewriter, /) -> None:
        first: dict[SSAValue, int] = {}
        again: list[int] = []
        for i, value in _invariants(op):
            if first.setdefault(value, i) != i:
                again.append(i)
                for region in op.regions:
                    rewriter.replace_all_uses_with(region.block.args[i], region.block.args[first[value]])
        if again:
            without(op, rewriter, {}, again)


class Unvaried(Pattern):
    """A value that a loop carries and never changes becomes an invariant, and its own result."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: WhileOp, rewriter: PatternRewriter, /) -> None:
        body = op.regions[1].block
        same = {i: op.operands[i] for i, value in enumerate(op.yielded(1)) if value is body.args[i]}
        if not same:
            return
        for i, value in same.items():
            op.operands = [*op.operands, value]
            for region in op.regions:
                block = region.block
                rewriter.replace_all_uses_with(block.args[i], block.insert_arg(value.type, len(block.args)))
        trim(op, same)
        without(op, rewriter, same)


class NothingToDo(Pattern):
    """A result that each branch only passes on from outside becomes a select, and is no result of the branch."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: IfOp, rewriter: PatternRewriter, /) -> None:
        b = RewriteBuilder(op, rewriter)
        selected: dict[int, SSAValue | None] = {}
        for i, sides in enumerate(zip(op.yielded(0), op.yielded(1), strict=True)):
            if op.results[i].first_use is None or not all(_passed(value) for value in sides):
                continue
            x, y = (_outside(op, value, rewriter) for value in sides)
            selected[i] = x if x is y or _equal(x, y) else b.select(op.operands[0], x, y)
        if selected:
            trim(op, selected)
            without(op, rewriter, selected)


def _passed(value: SSAValue) -> bool:
    return isinstance(value, BlockArgument) or isinstance(value.owner, ConstantOp)


def _equal(x: SSAValue, y: SSAValue) -> bool:
    left, right = defined_by(x, ConstantOp), defined_by(y, ConstantOp)
    return left is not None and right is not None and left.value == right.value


def _outside(op: IfOp, value: SSAValue, rewriter: PatternRewriter) -> SSAValue:
    """Return the outer value that a region only passes on."""
    if isinstance(value, BlockArgument):
        return op.entering[value.index]
    assert isinstance(value.owner, ConstantOp)
    return rewriter.insert(value.owner.clone(), InsertPoint.before(op)).results[0]


PATTERNS: Table = {
    IfOp: (KnownBranch(), EnteringConstants(), EnteringTwice(), NothingToDo()),
    WhileOp: (FewTrips(), EnteringConstants(), EnteringTwice(), Unvaried()),
}
