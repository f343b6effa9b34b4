"""The steps that a view consists of, each with its inverse.

A plan (`plan.plan`) is a tuple of steps from a storage's memory to a view. `read` applies a step to its operand.
`write` is the inverse: from the new value of the result it computes the new value of the operand. It gets the old
operand as a thunk, which a step that overwrites everything never calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from lazytpu.aten.views.gather_count import note_gather
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

    Old: TypeAlias = Callable[[], SSAValue]

Shape: TypeAlias = tuple[int, ...]

INDEX = "i32"  # XLA:TPU has no 64-bit addresses, and a dim of 2**31 elements does not fit a device anyway


@dataclass(frozen=True, slots=True)
class Slice:
    """`counts` elements of each dim from `starts` on, `strides` apart."""

    shape: Shape
    starts: Shape
    counts: Shape
    strides: Shape

    @property
    def limits(self) -> Shape:
        return tuple(s + (n - 1) * t + 1 for s, n, t in zip(self.starts, self.counts, self.strides, strict=True))

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        return b.slice(x, self.starts, self.limits, self.strides)

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        x = old()
        if all(t == 1 for t in self.strides):
            return b.dynamic_update_slice(x, value, [b.constant(s, INDEX) for s in self.starts])
        written = self._spread(b, b.constant(True, "i1", self.counts), "i1")
        return b.select(written, self._spread(b, value, dtype_of(value)), x)

    def _spread(self, b: Builder, value: SSAValue, dtype: str) -> SSAValue:
        """`value` at the elements of the slice, zero (or false) between and around them."""
        high = tuple(n - limit for n, limit in zip(self.shape, self.limits, strict=True))
        return b.pad(value, b.constant(0, dtype), self.starts, high, tuple(t - 1 for t in self.strides))


@dataclass(frozen=True, slots=True)
class Pad:
    """Elements appended to one dim. No view reads or writes them."""

    shape: Shape
    axis: int
    count: int

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        high = tuple(self.count if axis == self.axis else 0 for axis in range(len(self.shape)))
        return b.pad(x, b.constant(0, dtype_of(x)), (0,) * len(high), high)

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        return b.slice(value, (0,) * len(self.shape), self.shape)


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: Shape
    result: Shape

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        return b.reshape(x, self.result)

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        return b.reshape(value, self.shape)


@dataclass(frozen=True, slots=True)
class Transpose:
    permutation: Shape

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        return b.transpose(x, self.permutation)

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        return b.transpose(value, tuple(self.permutation.index(axis) for axis in range(len(self.permutation))))


@dataclass(frozen=True, slots=True)
class Broadcast:
    """`broadcast_in_dim`. The dims it expands have stride 0, where a write keeps the last element."""

    shape: Shape
    result: Shape
    dims: Shape

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        return b.broadcast_in_dim(x, self.result, self.dims)

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        filled = {dim for dim, n in zip(self.dims, self.shape, strict=True) if n == self.result[dim]}
        starts = tuple(0 if dim in filled else n - 1 for dim, n in enumerate(self.result))
        return b.reshape(b.slice(value, starts, self.result), self.shape)


@dataclass(frozen=True, slots=True)
class Stack:
    """One plan for each index of a dim that overlaps others, concatenated along `axis`. The last one wins a write."""

    plans: tuple[Plan, ...]
    axis: int
    shape: Shape

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        return b.concatenate([read(b, plan, x) for plan in self.plans], self.axis)

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        x = old()
        starts, limits = [0] * len(self.shape), list(self.shape)
        for index, plan in enumerate(self.plans):
            starts[self.axis], limits[self.axis] = index, index + 1
            x = write(b, plan, x, b.slice(value, tuple(starts), tuple(limits)))
        return x


@dataclass(frozen=True, slots=True)
class Take:
    """A gather along `axis`, which becomes the dims `counts`: element i is element `offset + sum(i * strides)`."""

    shape: Shape
    axis: int
    offset: int
    counts: Shape
    strides: Shape

    def read(self, b: Builder, x: SSAValue) -> SSAValue:
        taken = self._along(b, x, self.shape, self.numbers(b))
        return b.reshape(taken, self.shape[: self.axis] + self.counts + self.shape[self.axis + 1 :])

    def write(self, b: Builder, old: Old, value: SSAValue) -> SSAValue:
        """Find the last element written to each place first, so that the result does not depend on XLA's order."""
        length, count = self.shape[self.axis], prod(self.counts)
        winner = b.scatter(
            b.constant(-1, INDEX, (length,)),
            b.reshape(self.numbers(b), (count, 1)),
            b.iota(INDEX, (count,), 0),
            kind="max",
            update_window_dims=(),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=1,
        )
        flat = self.shape[: self.axis] + (count,) + self.shape[self.axis + 1 :]
        new = self._along(b, b.reshape(value, flat), flat, b.max(winner, b.constant(0, INDEX, (length,))))
        written = b.compare("GE", winner, b.constant(0, INDEX, (length,)))
        return b.select(b.broadcast_in_dim(written, self.shape, (self.axis,)), new, old())

    def numbers(self, b: Builder) -> SSAValue:
        """The index along the axis of each element of `counts`, as a vector."""
        total = b.constant(self.offset, INDEX, self.counts)
        for dim, stride in enumerate(self.strides):
            step = b.mul(b.iota(INDEX, self.counts, dim), b.constant(stride, INDEX, self.counts))
            total = b.add(total, step)
        return b.reshape(total, (prod(self.counts),))

    def _along(self, b: Builder, x: SSAValue, shape: Shape, numbers: SSAValue) -> SSAValue:
        note_gather()
        axis, rank = self.axis, len(shape)
        (count,) = shape_of(numbers)
        return b.gather(
            x,
            b.reshape(numbers, (count, 1)),
            offset_dims=tuple(d for d in range(rank) if d != axis),
            collapsed_slice_dims=(axis,),
            start_index_map=(axis,),
            index_vector_dim=1,
            slice_sizes=shape[:axis] + (1,) + shape[axis + 1 :],
        )


Step: TypeAlias = Slice | Pad | Reshape | Transpose | Broadcast | Stack | Take
Plan: TypeAlias = tuple[Step, ...]


def read(b: Builder, plan: Plan, x: SSAValue) -> SSAValue:
    """The result of the plan applied to `x`."""
    for step in plan:
        x = step.read(b, x)
    return x


def write(b: Builder, plan: Plan, x: SSAValue, value: SSAValue) -> SSAValue:
    """`x` with `value` written to the elements that the plan reads."""
    befores = [x]  # befores[i]: the old operand of step i, computed only if a step needs it

    def before(index: int) -> SSAValue:
        while len(befores) <= index:
            befores.append(plan[len(befores) - 1].read(b, befores[-1]))
        return befores[index]

    for index in reversed(range(len(plan))):
        value = plan[index].write(b, lambda index=index: before(index), value)
    return value
