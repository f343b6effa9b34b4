"""What passes share on ops with regions: the blocks of a module, and taking results and operands from an op."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.control import RegionOp, WhileOp


def blocks(module: ModuleOp) -> Iterator[Block]:
    """The blocks of a module's functions, and of the regions in them, the outer ones first."""
    for function in module.body.block.ops:
        if isinstance(function, FuncOp) and not function.is_declaration:
            yield from _within(function.body.block)


def _within(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from _within(region.block)


def unused(op: RegionOp) -> list[int]:
    """The numbers of the entering values that no region reads, without those that a loop carries."""
    first = op.count if isinstance(op, WhileOp) else 0
    arguments = range(first, len(op.entering))
    return [i for i in arguments if all(region.block.args[i].first_use is None for region in op.regions)]


def trim(op: RegionOp, dropped: Collection[int]) -> None:
    """Let the regions no longer yield what these results are. The op is invalid until `without` takes them from it."""
    for region in range(len(op.regions)):
        if not (isinstance(op, WhileOp) and region == 0):
            end = op.end(region)
            end.operands = [value for i, value in enumerate(end.operands) if i not in dropped]


def without(
    op: RegionOp,
    rewriter: PatternRewriter,
    results: Mapping[int, SSAValue | None],
    entering: Collection[int] = (),
) -> RegionOp | None:
    """Take from an op results that its regions no longer yield, and entering values that they do not read; a loop's
    carried value goes with its result. The uses of a result are replaced by the value in the mapping; None for one
    without uses. Returns the op in its place, or None when no result is left."""
    loop = isinstance(op, WhileOp)
    gone = {*entering, *results} if loop else set(entering)
    kept = [i for i in range(len(op.results)) if i not in results]
    if not kept:
        rewriter.replace(op, (), [results[i] for i in range(len(op.results))])
        return None
    for region in op.regions:
        for i in sorted(gone, reverse=True):
            region.block.erase_arg(region.block.args[i])
    operands = [value for i, value in enumerate(op.entering) if i not in gone]
    new = type(op).create(
        operands=operands if loop else [op.operands[0], *operands],
        result_types=[op.results[i].type for i in kept],
        properties={**op.properties, **({"carried": IntegerAttr(len(kept), i64)} if loop else {})},
        attributes=op.attributes,
        location=op.location,
        regions=[op.detach_region(0) for _ in range(len(op.regions))],
    )
    left = iter(new.results)
    rewriter.replace(op, new, [results[i] if i in results else next(left) for i in range(len(op.results))])
    return new


def live_carried(op: WhileOp) -> set[int]:
    """The numbers of the carried values on which the condition, or a result that has uses, depends."""
    cond, body = (region.block for region in op.regions)
    live = {i for i, result in enumerate(op.results) if result.first_use or cond.args[i].first_use}
    pending, seen = list(live), set[Operation]()
    while pending:
        values = [op.end(1).operands[pending.pop()]]
        while values:
            owner = (value := values.pop()).owner
            if isinstance(owner, Operation):
                if owner not in seen:
                    seen.add(owner)
                    values.extend(owner.operands)
            elif isinstance(value, BlockArgument) and value.index < op.count and value.index not in live:
                assert value.block is body
                live.add(value.index)
                pending.append(value.index)
    return live
