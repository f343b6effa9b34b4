"""Helpers for ops with regions: the blocks of a module, and removing results and operands of an op."""

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
    """Drop the values of these results from the ends of the regions. The op is invalid until `without` removes the
    results."""
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
    """Remove results that the regions of an op no longer yield, and entering values that they do not read. A carried
    value of a loop is removed with its result. The uses of a result are replaced by the value in `results`, which is
    None if there are none. Return the new op, or None when no result remains."""
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
    remaining = iter(new.results)
    rewriter.replace(op, new, [results[i] if i in results else next(remaining) for i in range(len(op.results))])
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
