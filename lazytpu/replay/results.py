"""What a call leaves behind: which storages get new contents, what it assigns, and what it returns."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from lazytpu.frontend.tensors import is_natural, wrap
from lazytpu.frontend.torch_private import META, as_strided, pytree
from lazytpu.replay.code import SIMPLE
from lazytpu.replay.reach import GRAD, Key, Reach
from lazytpu.replay.refusal import Refused
from lazytpu.trace.value import Value

Meta = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride, offset


@dataclass(frozen=True, slots=True)
class Write:
    """The storage found in a place gets the value of a slot: its own (`fresh` is None), or a new tensor's that is
    assigned there, of this view. `slot` is None where a gradient is removed."""

    place: Key
    slot: int | None
    fresh: Meta | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """A leaf of the result: a new tensor of a slot's value, with this view of it."""

    slot: int
    meta: Meta | None


@dataclass(frozen=True, slots=True)
class Same:
    """A leaf of the result: the tensor in a place, or an alias of it when `meta` is set."""

    place: Key
    meta: Meta | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A leaf of the result: the same object or plain value at every call."""

    value: Any

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kept):
            return False
        a, b = self.value, other.value
        return a is b or (type(a) is type(b) and type(a) in SIMPLE and repr(a) == repr(b))


class Before:
    """The tensors before a call, for what it changes. All are held weakly, so that they may die in it (R4)."""

    def __init__(self, tensors: dict[Key, torch.Tensor]):
        self.tensors = {place: weakref.ref(tensor) for place, tensor in tensors.items()}
        self.storages: dict[int, tuple[Any, Any, Key]] = {}  # by id: the storage, its value, its first place
        for place, tensor in tensors.items():
            storage: Any = tensor.untyped_storage()
            if id(storage) not in self.storages:
                self.storages[id(storage)] = weakref.ref(storage), weakref.ref(value_in(storage)), place

    def found(self, storage: Any) -> tuple[Any, Key] | None:
        """The value that a storage held and its first place, when it was there before the call."""
        entry = self.storages.get(id(storage))
        return entry[1:] if entry is not None and entry[0]() is storage else None


def value_in(storage: Any) -> Value:
    """The value that a storage holds."""
    return storage._value


def writes(
    before: Before, after: dict[Key, torch.Tensor], slots: dict[int, int], labels: dict[Key, str]
) -> list[Write]:
    """What a call wrote and assigned; `slots` are those of the trace's values that are alive, by id.

    Raises Refused for what a replay could not do.
    """
    found: list[Write] = []
    done: set[int] = set()
    for place, tensor in after.items():
        storage: Any = tensor.untyped_storage()
        value = value_in(storage)
        label = labels.get(place, "an argument")
        was = before.found(storage)
        if was is not None:
            if place not in before.tensors or before.tensors[place]() is not tensor:
                raise Refused(f"it rebinds {label} to a tensor that was there before; copy into it with copy_()")
            if id(storage) in done or was[0]() is value:
                continue
            done.add(id(storage))
            found.append(Write(was[1], _slot(value, slots, label)))
        else:
            if place not in before.tensors and place[1] != GRAD:
                raise Refused(f"it makes {label}")
            if tensor.grad_fn is not None or (tensor.requires_grad and place[1] != GRAD):
                raise Refused(f"it assigns a tensor that requires grad to {label}; detach() it")
            if id(storage) in done:
                raise Refused(f"it assigns tensors that share memory, one of them to {label}")
            done.add(id(storage))
            found.append(Write(place, _slot(value, slots, label), _meta(tensor)))
    for place in before.tensors.keys() - after.keys():
        if place[1] != GRAD:
            raise Refused(f"it removes {labels.get(place, 'a tensor')}")
        found.append(Write(place, None))
    return found


def _slot(value: Value, slots: dict[int, int], label: str) -> int:
    if id(value) not in slots:
        raise Refused(f"it puts a tensor into {label} that it did not compute; pass it as an argument, already on tpu")
    return slots[id(value)]


def _meta(tensor: torch.Tensor) -> Meta:
    kind = value_in(tensor.untyped_storage()).layout
    if tensor.dtype is not kind.dtype:
        raise Refused("a result is a view of another dtype; clone() it")
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def leaves_of(result: Any, before: Before, slots: dict[int, int]) -> tuple[tuple[Any, ...], Any]:
    """(what each leaf of a call's result is, the result's structure). Raises Refused for one that no replay makes."""
    leaves, structure = pytree.tree_flatten(result)
    found: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "tpu":
            found.append(_returned(leaf, before, slots))
        elif isinstance(leaf, torch.Tensor):
            raise Refused(f"it returns a tensor on {leaf.device}")
        else:
            found.append(Kept(leaf))
    return tuple(found), structure


def _returned(tensor: torch.Tensor, before: Before, slots: dict[int, int]) -> Any:
    storage: Any = tensor.untyped_storage()
    was = before.found(storage)
    if was is not None:
        place = next((p for p, t in before.tensors.items() if t() is tensor), None)
        return Same(was[1], _meta(tensor)) if place is None else Same(place, None)
    value = value_in(storage)
    if id(value) not in slots:
        raise Refused("it returns a tensor that it made from data of the host")
    return Fresh(slots[id(value)], None if is_natural(tensor, value.layout) else _meta(tensor))


def view(value: Value, meta: Meta | None) -> torch.Tensor:
    """A new tensor with a value, or a view of it."""
    tensor = wrap(value)
    return tensor if meta is None else as_strided(META, tensor, *meta)


def check_unchanged(before: Reach, after: Reach, sizes: dict[int, int]) -> None:
    """Raise Refused when the call changed plain Python state: a replay does not run the code that does."""
    for place, value in before.simple.items():
        if place[1] == GRAD:
            continue
        if place in after.simple and exactly(after.simple[place], value):
            continue
        now = repr(after.simple[place]) if place in after.simple else "something else"
        raise Refused(f"it changes {before.labels[place]} from {value!r} to {now}, which only its Python does")
    for place, thing in before.objects.items():
        if place not in after.objects or after.objects[place] is not thing:
            raise Refused(f"it changes {before.labels.get(place, 'an object')}, which only its Python does")
    for container, label in after.whole:
        if len(container) != sizes.get(id(container), len(container)):
            raise Refused(f"it changes the length of {label}, which only its Python does")


def exactly(a: Any, b: Any) -> bool:
    """Whether two plain values are the same, bit for bit."""
    return a is b or (type(a) is type(b) and (a == b or a != a) and (bool(a) or repr(a) == repr(b)))
