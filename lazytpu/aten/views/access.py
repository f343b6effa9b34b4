"""Reading and writing a storage through a view, whose (size, stride, offset) become dense ops (R1).

A storage's value is a dense row-major array in *memory order*: the dims of the tensor that created it, by descending
stride. So a channels_last tensor is stored as NHWC, and reading it as NCHW is one transpose. A view of another dtype is
read in units common to both dtypes: an f64 viewed as f32 is a pair of f32, and so is a complex number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.views import steps as view_steps
from lazytpu.aten.views.plan import plan
from lazytpu.aten.views.steps import Plan, Shape
from lazytpu.aten.views.units import units
from lazytpu.ir.types import REAL_OF, dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

__all__ = ["Base", "View", "read", "write"]


@dataclass(frozen=True)
class Base:
    """The tensor that created a storage: dense, at offset 0, with its dims in any order."""

    dtype: str
    size: Shape
    stride: Shape

    @classmethod
    def of(cls, dtype: str, size: Shape, stride: Shape) -> Base:
        """The base for a new tensor of this size and stride.

        If it is dense, its own dims; else the smallest flat storage that can hold it, of which the tensor is a view.
        """
        base = cls(dtype, size, stride)
        if 0 in size:
            return base
        dense = 1
        for dim in reversed(base.order):
            if size[dim] != 1 and stride[dim] != dense:
                return cls(dtype, (1 + sum((n - 1) * t for n, t in zip(size, stride, strict=True)),), (1,))
            dense *= size[dim]
        return base

    @cached_property
    def order(self) -> Shape:
        """The dims from the largest stride to the smallest; of equal strides, the first dim first."""
        return tuple(sorted(range(len(self.size)), key=lambda dim: -self.stride[dim]))

    @cached_property
    def memory_shape(self) -> Shape:
        return tuple(self.size[dim] for dim in self.order)

    @property
    def extent(self) -> int:
        """The number of elements of the storage."""
        return prod(self.size)

    def to_memory(self, b: Builder, logical: SSAValue) -> SSAValue:
        """`logical`, of shape `size`, in memory order."""
        return b.transpose(logical, self.order)

    def to_logical(self, b: Builder, memory: SSAValue) -> SSAValue:
        """The inverse of `to_memory`."""
        return b.transpose(memory, tuple(self.order.index(dim) for dim in range(len(self.order))))


@dataclass(frozen=True)
class View:
    """A tensor on a storage. Strides and offset count elements of the view's own dtype."""

    size: Shape
    stride: Shape
    offset: int
    dtype: str

    @property
    def overlaps(self) -> bool:
        """Whether two indices may be one element of memory: a dim does not step over the span of those inside it."""
        span = 1
        for stride, size in sorted((t, n) for n, t in zip(self.size, self.stride, strict=True) if n > 1):
            if stride < span:
                return True
            span += (size - 1) * stride
        return False

    @property
    def order(self) -> Shape:
        """The dims from the outermost to the innermost, as torch's kernels write them: by descending stride, and of
        equal strides the larger size first. Those of stride 0 stay where they are."""
        moving = [dim for dim, t in enumerate(self.stride) if t]
        ordered = iter(sorted(moving, key=lambda dim: (-self.stride[dim], -self.size[dim])))
        return tuple(next(ordered) if t else dim for dim, t in enumerate(self.stride))

    def permuted(self, order: Shape) -> View:
        """The same elements, with the dims in this order."""
        size, stride = tuple(self.size[dim] for dim in order), tuple(self.stride[dim] for dim in order)
        return View(size, stride, self.offset, self.dtype)


def read(b: Builder, memory: SSAValue, base: Base, view: View) -> SSAValue:
    """The tensor (`view.size`, `view.dtype`) that the view reads from a storage.

    `memory` has shape `base.memory_shape` and dtype `base.dtype`. Raises ValueError for a view that reaches past it.
    """
    _check(memory, base.dtype, base.memory_shape, "the storage's value")
    if 0 in view.size:
        return b.constant(0, view.dtype, view.size)
    if component := _part(base, view):
        return b.unary(component.name, read(b, memory, base, component.of))
    if base.dtype == view.dtype:
        return view_steps.read(b, _plan(b, base.memory_shape, view, 1, writing=False), memory)
    in_base, in_view = units(base.dtype, view.dtype)
    steps = _plan(b, base.memory_shape + in_base.tail, view, in_view.ratio, writing=False)
    return in_view.join(b, view_steps.read(b, steps, in_base.split(b, memory)))


def write(b: Builder, memory: SSAValue, base: Base, view: View, value: SSAValue) -> SSAValue:
    """The storage's new value, in memory order, after writing `value` (`view.size`, `view.dtype`) through the view.

    Where elements of the view overlap, the last in the view's `order` wins. A view of the whole storage does not read
    `memory`. Raises ValueError for a view that reaches past the storage.
    """
    _check(memory, base.dtype, base.memory_shape, "the storage's value")
    _check(value, view.dtype, view.size, "the written value")
    if 0 in view.size:
        return memory
    if view.overlaps:
        value, view = b.transpose(value, view.order), view.permuted(view.order)
    if component := _part(base, view):
        numbers = read(b, memory, base, component.of)
        pair = (value, b.unary("imag", numbers)) if component.name == "real" else (b.unary("real", numbers), value)
        return write(b, memory, base, component.of, b.binary("complex", *pair))
    if base.dtype == view.dtype:
        return view_steps.write(b, _plan(b, base.memory_shape, view, 1, writing=True), memory, value)
    in_base, in_view = units(base.dtype, view.dtype)
    steps = _plan(b, base.memory_shape + in_base.tail, view, in_view.ratio, writing=True)
    return in_base.join(b, view_steps.write(b, steps, in_base.split(b, memory), in_view.split(b, value)))


def _plan(b: Builder, memory: Shape, view: View, ratio: int, *, writing: bool) -> Plan:
    """The plan of a view whose elements are `ratio` elements of `memory` each."""
    if ratio == 1:
        return plan(memory, view.size, view.stride, view.offset, writing, b.identities)
    stride = (*(t * ratio for t in view.stride), 1)
    return plan(memory, (*view.size, ratio), stride, view.offset * ratio, writing, b.identities)


@dataclass(frozen=True)
class _Part:
    """A view that is the real or imaginary part of the complex view `of`."""

    name: str
    of: View


def _part(base: Base, view: View) -> _Part | None:
    """The view as `x.real` or `x.imag` of a complex storage, which needs no array of pairs, or None."""
    moving = [t for n, t in zip(view.size, view.stride, strict=True) if n > 1]
    if REAL_OF.get(base.dtype) != view.dtype or any(t % 2 for t in moving):
        return None
    stride = tuple(t // 2 for t in view.stride)
    return _Part("imag" if view.offset % 2 else "real", View(view.size, stride, view.offset // 2, base.dtype))


def _check(value: SSAValue, dtype: str, shape: Shape, what: str) -> None:
    if dtype_of(value) != dtype or shape_of(value) != shape:
        raise ValueError(f"{what} must be {dtype} of shape {list(shape)}; got {value.type}")
