"""Views at an index that varies: `x[i]` with an int is a view, whose offset is part of the program until it varies.

In `for t in range(100): y = y * a[t]` each iteration would be a record of its own, since `a[t]` is a different view
each time. When a trie state sees an op again that reads a tensor at another offset, the op reads a copy from then on: a
box of the tensor's memory, cut out at run-time starts (`lazytpu.box`). Later in that trace, other views of this tensor
do so, too. Checked on misses only: an op that reads a box is recorded as two, after a failed look-up.

Boxes are the views that integers and slices without a step produce from a contiguous tensor. Other views stay part of
the program. So do the offsets at which an op writes, and at which it reads a tensor that it writes, since torch rejects
some of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.codegen import KernelArgument
from lazytpu.frontend.tensors import value_of, wrap
from lazytpu.frontend.torch_private import META, as_strided
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import Layout, row_major

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("box(Tensor self, int[] dims, int[] starts, int[] sizes) -> Tensor")

Key = tuple[Any, ...]


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


@dataclass(frozen=True, slots=True)
class VaryingRead:
    """An argument that is a box: its index in the key, and among the arguments."""

    token: int
    argument: int
    box: Box


@override("lazytpu.box.default")
def _box(self: torch.Tensor, dims: list[int], starts: list[int], sizes: list[int]) -> torch.Tensor:
    size_of = dict(zip(dims, sizes, strict=True))
    return self.new_empty([size_of.get(dim, size) for dim, size in enumerate(self.shape)])


def with_copies(reads: Sequence[VaryingRead], r: Recorder, args: Sequence[Any]) -> list[Any]:
    """Record copies of the views whose offsets vary, and return an op's arguments with them."""
    replaced = list(args)
    for read in reads:
        view = args[read.argument]
        replaced[read.argument] = read.box.of(view)
        value = value_of(view)
        with r.lock:
            if value.epoch == r.epoch:  # otherwise that trace was cut: in strict mode at once, or by another thread
                offsets = r.state.offsets
                r.state.offsets = offsets._replace(boxed=offsets.boxed | {value.slot})
    return replaced


def varying_reads(
    parent: State, arguments: Sequence[KernelArgument], key: Key, args: Sequence[Any]
) -> list[VaryingRead]:
    """Return the views that the next op reads at offsets that vary."""
    reads = list(_reads(arguments, key, args))
    if not reads:
        return []
    boxed, copies = parent.offsets.boxed, parent.offsets.copies
    varying = [read for read in reads if value_of(args[read.argument]).slot in boxed and _is_admitted(key, read)]
    for general in copies:
        places = [place for place, token in enumerate(general) if _is_view(token) and token[3] is ANY]
        if _general(key, places) == general:
            varying += [read for read in reads if read.token in places]
    if varying:
        return list({read.token: read for read in varying}.values())
    for sibling, child in list(parent.next.items()):
        if sibling[0] == key[0] and len(sibling) == len(key) and sibling != key:
            places = [read.token for read in reads if sibling[read.token] != key[read.token]]
            general = _general(key, places)
            if general == _general(sibling, places):
                parent.offsets = parent.offsets._replace(copies=copies | {general})
                parent.remove(child)
                return [read for read in reads if read.token in places]
    return []


def _reads(arguments: Sequence[KernelArgument], key: Key, args: Sequence[Any]) -> Iterator[VaryingRead]:
    keyed = [i for i, a in enumerate(arguments) if a.kind != "generator"]
    written = [args[i].untyped_storage() for i, a in enumerate(arguments) if a.kind == "tensor" and a.written]
    for token, index in enumerate(keyed, 1):
        if arguments[index].kind == "tensor" and not arguments[index].written and _is_view(key[token]):
            if any(args[index].untyped_storage() is storage for storage in written):
                continue
            box = box_of(value_of(args[index]).layout, args[index])
            if box is not None:
                yield VaryingRead(token, index, box)


def _is_view(token: Any) -> bool:
    return type(token) is tuple and len(token) == 5


def _is_admitted(key: Key, read: VaryingRead) -> bool:
    """Return whether the trace used the tensor before this op; otherwise its slot is not known yet."""
    return type(key[read.token][0]) is int


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
