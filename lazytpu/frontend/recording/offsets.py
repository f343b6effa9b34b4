"""Views at an index that varies: `x[i]` with an int is a view, whose offset is part of the program until it varies.

In `for t in range(100): y = y * a[t]` each iteration would be a record of its own, since `a[t]` is a different view
each time. When a trie state sees an op again that reads a tensor at another offset, the op reads a copy from then on: a
box of the tensor's memory, cut out at run-time starts (`lazytpu.box`). Later in that trace, other reads of this tensor
do so, too. Checked on misses only: an op that reads a box is recorded as two, after a failed look-up.

An op that writes a view, as in `x[i] += 1`, writes a copy of it instead, which then replaces the box of the tensor's
memory (`lazytpu.with_box`). torch's checks for overlapping memory see the views, not the copies.

A source line where an offset was seen to vary uses copies at once in other traces, if views have the same sizes. A
short trace after other states is compared, too, with the last one of the same ops and sizes: a read leaves records of
its own state pending. Where sizes vary as well, the offsets belong to one program for many sizes (`engine.sizes`).

Boxes are the views that integers and slices without a step produce from a contiguous tensor. Other views stay part of
the program. So do the offsets of `out=`, which may be resized, and of ops that write several tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.lines import user_line
from lazytpu.frontend.recording.codegen import KernelArgument
from lazytpu.frontend.recording.keys import ABSENT
from lazytpu.frontend.recording.writes import check_writes
from lazytpu.frontend.tensors import value_of, wrap
from lazytpu.frontend.torch_private import META, as_strided
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import Layout, row_major

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("box(Tensor self, int[] dims, int[] starts, int[] sizes) -> Tensor")
LIBRARY.define("with_box(Tensor self, Tensor box, int[] dims, int[] starts) -> Tensor")

Key = tuple[Any, ...]

MAX_DEPTH = 32  # records before an op that is compared with earlier traces
MAX_VARIED = 10_000  # lines and sizes with offsets that varied: forgetting them costs a program each

_varied: set[Any] = set()  # source lines, with keys without the offsets that varied there
_last: dict[Any, tuple[Key, tuple[Any, ...]]] = {}  # (op, source line, depth) -> the last key there, and `_before` it


class Varies:
    """A placeholder for the offset of a view in a key."""

    def __repr__(self) -> str:
        return "ANY OFFSET"


ANY = Varies()


class Box(NamedTuple):
    """A part of a tensor: for each dimension in `dims`, `sizes` elements from `starts` on; all elements of the
    others."""

    dims: list[int]
    starts: list[int]
    sizes: list[int]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy the part of the tensor's memory that it views, to a tensor of its size."""
        box = torch.ops.lazytpu.box.default(wrap(value_of(tensor)), *self)
        return as_strided(META, box, tensor.shape, row_major(tuple(tensor.shape)), 0)

    def replace_in(self, tensor: torch.Tensor, box: torch.Tensor) -> None:
        """Write a copy of the part back to the tensor's memory."""
        layout = value_of(tensor).layout
        shape = [1] * len(layout.shape)
        whole = as_strided(META, tensor, layout.shape, layout.stride, 0)
        for dim, size in enumerate(layout.shape):
            shape[dim] = self.sizes[self.dims.index(dim)] if dim in self.dims else size
        box = as_strided(META, box, shape, row_major(tuple(shape)), 0)
        torch.ops.aten.copy_.default(whole, torch.ops.lazytpu.with_box.default(whole, box, self.dims, self.starts))


@dataclass(frozen=True, slots=True)
class VaryingView:
    """An argument that is a box: its index in the key, and among the arguments; and whether the op writes it."""

    token: int
    argument: int
    box: Box
    written: bool


@override("lazytpu.box.default")
def _box(self: torch.Tensor, dims: list[int], starts: list[int], sizes: list[int]) -> torch.Tensor:
    size_of = dict(zip(dims, sizes, strict=True))
    return self.new_empty([size_of.get(dim, size) for dim, size in enumerate(self.shape)])


@override("lazytpu.with_box.default")
def _with_box(self: torch.Tensor, box: torch.Tensor, dims: list[int], starts: list[int]) -> torch.Tensor:
    return torch.empty_like(self)


def on_copies(views: Sequence[VaryingView], r: Recorder, args: Sequence[Any], call: Callable[[list[Any]], Any]) -> Any:
    """Call an op with copies of the views whose offsets vary, and write the copies back that it changed."""
    replaced = list(args)
    for varying in views:
        view = args[varying.argument]
        replaced[varying.argument] = varying.box.of(view)
        value = value_of(view)
        with r.lock:
            # Otherwise that trace was cut: in strict mode at once, or by another thread.
            if value.epoch == r.epoch and not varying.written:
                offsets = r.state.offsets
                r.state.offsets = offsets._replace(boxed=offsets.boxed | {value.slot})
    result = call(replaced)
    for varying in views:
        if varying.written:
            varying.box.replace_in(args[varying.argument], replaced[varying.argument])
            result = args[varying.argument]
    return result


def varying_views(
    parent: State, op: OpOverload, arguments: Sequence[KernelArgument], key: Key, args: Sequence[Any]
) -> list[VaryingView]:
    """Return the views that the next op reads or writes at offsets that vary. Raises torch's RuntimeError where a view
    that is written overlaps another."""
    views = _varying(parent, list(_views(op, arguments, key, args)), key, args)
    if views and any(a.written for a in arguments):
        check_writes(op, {a.name: v for a, v in zip(op._schema.arguments, args, strict=True) if v is not ABSENT})
    return views


def _varying(parent: State, views: Sequence[VaryingView], key: Key, args: Sequence[Any]) -> list[VaryingView]:
    if not views:
        return []
    boxed, copies = parent.offsets.boxed, parent.offsets.copies
    varying = [
        view
        for view in views
        if not view.written and value_of(args[view.argument]).slot in boxed and _is_admitted(key, view)
    ]
    for general in copies:
        places = [place for place, token in enumerate(general) if _is_view(token) and token[3] is ANY]
        if _general(key, places) == general:
            varying += [view for view in views if view.token in places]
    if varying:
        return list({view.token: view for view in varying}.values())
    for sibling, child in list(parent.next.items()):
        if sibling[0] == key[0] and len(sibling) == len(key) and sibling != key:
            places = [view.token for view in views if sibling[view.token] != key[view.token]]
            general = _general(key, places)
            if general == _general(sibling, places):
                parent.offsets = parent.offsets._replace(copies=copies | {general})
                parent.remove(child)
                return [view for view in views if view.token in places]
    if _varies_at_line(parent, views, key):
        general = _general(key, [view.token for view in views])
        parent.offsets = parent.offsets._replace(copies=copies | {general})
        return list(views)
    return []


def _varies_at_line(parent: State, views: Sequence[VaryingView], key: Key) -> bool:
    """Return whether the offsets vary at the user's line, in traces of the same ops. Later traces see this key, too."""
    line = user_line()
    if line is None or not 0 < parent.depth <= MAX_DEPTH:
        return False
    places = [view.token for view in views]
    general = _general(key, places)
    if (line, general) in _varied:
        return True
    before = _before(parent)
    last, records = _last.get(place := (key[0], line, parent.depth), ((), ()))
    _last[place] = key, before
    if last == key or records != before or len(last) != len(key) or general != _general(last, places):
        return False
    if len(_varied) >= MAX_VARIED:
        _varied.clear()
    _varied.add((line, general))
    return True


def _before(state: State | None) -> tuple[Any, ...]:
    """Return what led to a state, except for the offsets of views: equal only if all sizes are equal."""
    steps: list[Any] = []
    while state is not None and state.recorded:
        if state.key is None:
            steps.append([(record.op, record.outs) for record in state.recorded])
        else:
            steps.append(_general(state.key, [place for place, token in enumerate(state.key) if _is_view(token)]))
        state = state.parent
    return tuple(steps)


def _views(
    op: OpOverload, arguments: Sequence[KernelArgument], key: Key, args: Sequence[Any]
) -> Iterator[VaryingView]:
    """Yield the boxes that an op reads, and the one that it writes if it writes and returns nothing else."""
    keyed = [i for i, a in enumerate(arguments) if a.kind != "generator"]
    written = [a for a in arguments if a.written]
    returned = [r.alias_info for r in op._schema.returns]
    in_place = len(written) == len(returned) == 1 and not written[0].keyword and returned[0] is not None
    for token, index in enumerate(keyed, 1):
        argument = arguments[index]
        if argument.kind == "tensor" and _is_view(key[token]) and (in_place or not written):
            box = box_of(value_of(args[index]).layout, args[index])
            if box is not None:
                yield VaryingView(token, index, box, argument.written)


def _is_view(token: Any) -> bool:
    return type(token) is tuple and len(token) == 5


def _is_admitted(key: Key, view: VaryingView) -> bool:
    """Return whether the trace used the tensor before this op; otherwise its slot is not known yet."""
    return type(key[view.token][0]) is int


def _general(key: Key, places: Sequence[int]) -> Key:
    """Return the key with any offset in these places; empty if one of them is not a view."""
    tokens = list(key)
    for place in places:
        if place >= len(key) or not _is_view(key[place]):
            return ()
        base, shape, stride, _, dtype = tokens[place]
        tokens[place] = base, shape, stride, ANY, dtype
    return tuple(tokens)


def box_of(layout: Layout, view: torch.Tensor) -> Box | None:
    """Return the box that a view is of a tensor with this layout; None if it is not a box, or is the whole tensor."""
    if not layout.contiguous or view.dtype is not layout.dtype or 0 in view.shape:
        return None
    sizes, starts, remaining = [1] * len(layout.shape), list[int](), int(view.storage_offset())
    for size, stride in zip(layout.shape, layout.stride, strict=True):
        starts.append(0 if size == 1 else remaining // stride)
        remaining -= starts[-1] * stride
    dim = 0
    for size, stride in zip(view.shape, view.stride(), strict=True):
        if size == 1:
            continue
        while dim < len(sizes) and (layout.stride[dim] != stride or layout.shape[dim] == 1):
            dim += 1
        if dim == len(sizes) or starts[dim] + size > layout.shape[dim]:
            return None
        sizes[dim] = size
        dim += 1
    dims = [d for d, size in enumerate(sizes) if size < layout.shape[d]]
    return Box(dims, [starts[d] for d in dims], [sizes[d] for d in dims]) if dims else None
