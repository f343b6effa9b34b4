"""Arrays of a bucket's size for the arguments and results of a padded module, whatever the largest size is.

A growing cache enters with n elements and leaves with n + 1. At the bound 31 of n these are arrays of 31 and 32. In
arrays of 32 both use the same memory, so that one step's result is the next step's argument without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, shape_of, tensor_type
from lazytpu.passes.padding.dims import Dim, Factor
from lazytpu.passes.padding.pad_sizes import Sized


def widen(module: ModuleOp, sized: Sized, bound: Callable[[int], int]) -> Sized:
    """Enlarge padded dimensions of arguments and results to the `bound` of their size. Merged dimensions stay as they
    are."""
    function = next(op for op in module.ops if isinstance(op, FuncOp))
    block = function.body.block
    first, last = block.first_op, block.last_op
    assert first is not None and last is not None
    arguments = [_widened(dims, bound) for dims in sized.arguments]
    results = [_widened(dims, bound) for dims in sized.results]
    before = Builder(block, first)
    for argument, dims in zip(list(block.args), arguments, strict=False):
        _widen_argument(before, argument, dims)
    after = Builder(block, last)
    last.operands = [_in_room(after, value, dims) for value, dims in zip(last.operands, results, strict=True)]
    types = [a.type for a in block.args], [value.type for value in last.operands]
    function.function_type = FunctionType.from_lists(*types)
    return replace(sized, arguments=tuple(arguments), results=tuple(results))


def _widened(dims: Sequence[Dim], bound: Callable[[int], int]) -> tuple[Dim, ...]:
    """Return the dimensions with padded ones enlarged to their bound."""
    return tuple(
        [Dim((Factor(bound(d.size), d.factors[0].true),), d.free) if d.padded and d.prefix else d for d in dims]
    )


def _widen_argument(b: Builder, argument: BlockArgument, dims: Sequence[Dim]) -> None:
    """Replace an argument by a larger one, sliced to the old shape."""
    shape, room = shape_of(argument), tuple(dim.size for dim in dims)
    if room == shape:
        return
    block = argument.block
    wide = block.insert_arg(tensor_type(dtype_of(argument), room), argument.index)
    wide.name_hint = argument.name_hint
    argument.replace_all_uses_with(b.slice(wide, [0] * len(shape), shape))
    block.erase_arg(argument)


def _in_room(b: Builder, value: SSAValue, dims: Sequence[Dim]) -> SSAValue:
    """Return a value padded with zeros to these dimensions."""
    shape, room = shape_of(value), tuple(dim.size for dim in dims)
    if room == shape:
        return value
    high = [n - m for m, n in zip(shape, room, strict=True)]
    return b.pad(value, b.constant(0, dtype_of(value)), [0] * len(shape), high)
