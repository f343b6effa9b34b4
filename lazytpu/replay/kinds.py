"""What calls must have in common before any of their captures is looked at: arguments, and torch's settings."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.torch_private import dispatch_modes, function_modes, pytree, transforms
from lazytpu.options import options
from lazytpu.passes.registry import revision
from lazytpu.replay.captured import Captured
from lazytpu.replay.code import SIMPLE
from lazytpu.replay.family import Family, Seen, difference
from lazytpu.replay.recording import CallRecorder
from lazytpu.replay.rehearsal import RehearsalRecorder

PATIENCE = 4  # times `calls` recordings of one kind of arguments that lead to no capture
VARIANTS = 16  # captures kept of one kind of arguments, those used last
FAMILIES = 64  # families of recorded calls, the last ones
REST = 64  # calls that run as usual after a refusal, where other calls of the kind are captured


class Kind:
    """Calls with arguments of one kind: what was recorded of them, and what is captured.

    `objects` keeps the objects among the arguments alive, whose ids are in the key. `variants` are the captures, those
    used last first; `refused` says why there is none and will be none. Where some calls are captured and others cannot
    be, the others run as usual for `rest` calls before one is looked at again.
    """

    def __init__(self, leaves: list[Any]):
        self.objects = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        self.variants: list[Captured] = []
        self.families: dict[Any, Family] = {}
        self.last: Seen | None = None
        self.why: str | None = None  # the last two recorded calls were no equals
        self.recordings = 0  # since a call ran captured
        self.refusals = 0  # in a row
        self.refused: str | None = None
        self.leftover = False  # garbage may keep results alive
        self.rest, self._next_rest = 0, REST

    def family_of(self, seen: Seen) -> Family:
        """The family that a recorded call belongs to."""
        key = seen.key()
        found = self.families.get(key)
        if found is None:
            if self.last is not None:
                self.why = difference(self.last, seen)
            while len(self.families) >= FAMILIES:
                del self.families[next(iter(self.families))]
            found = self.families[key] = Family(seen)
        self.last = seen
        self.recordings += 1
        return found

    def keep(self, captured: Captured) -> None:
        """Look at `captured` first from now on; it takes the place of an earlier one of its family."""
        others = [each for each in self.variants if each.family is not captured.family]
        self.variants = [captured, *others[: VARIANTS - 1]]

    def drop(self, captured: Captured) -> None:
        """Forget a capture that was found wrong, and what led to it."""
        self.variants = [each for each in self.variants if each is not captured]
        self.families.clear()

    def refuse(self, reason: str, calls: int) -> str | None:
        """A recorded call could not be captured; returns the reason if that is to be told."""
        self.leftover = "still alive" in reason
        self.refusals += 1
        if self.refusals < calls and self.recordings <= PATIENCE * calls:
            return None
        self.families.clear()
        self.refusals = self.recordings = 0
        if not self.variants:
            self.refused = reason
            return reason
        told = self._next_rest > REST
        self.rest, self._next_rest = self._next_rest, 2 * self._next_rest
        return None if told else reason


def bypassed(mine: Any) -> bool:
    """Whether calls in this thread are neither captured nor replayed now."""
    return (
        isinstance(mine, CallRecorder | RehearsalRecorder)
        or mine.eager
        or torch.compiler.is_compiling()
        or dispatch_modes() > 0
        or function_modes() > 0
        or transforms() is not None
    )


def kind_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """(what calls must have in common to share a capture, the leaves of the arguments)."""
    if not kwargs and all(type(a) is torch.Tensor for a in args):
        leaves, structure = list(args), None
    else:
        leaves, structure = pytree.tree_flatten((args, kwargs))
    settings = (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("tpu") and torch.get_autocast_dtype("tpu"),
        torch.is_inference_mode_enabled(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        options.bounds_check,
        revision(),
    )
    key = (settings, str(structure) if structure is not None else len(leaves), *map(_kind, leaves))
    storages = [id(a.untyped_storage()) for a in leaves if isinstance(a, torch.Tensor) and a.layout is torch.strided]
    if len(set(storages)) != len(storages):
        key = (*key, tuple(map(storages.index, storages)))
    return key, leaves


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided:
            return type(leaf), leaf.layout
        storage: Any = leaf.untyped_storage()
        value = getattr(storage, "_value", None)
        return (
            leaf.shape, leaf.dtype, leaf.stride(), leaf.storage_offset(), leaf.requires_grad, type(leaf),
            leaf.device.type if value is None else value.layout.key, leaf.is_conj(), leaf.is_neg(),
        )  # fmt: skip
    return (type(leaf), repr(leaf)) if type(leaf) in SIMPLE else (type(leaf), id(leaf))
