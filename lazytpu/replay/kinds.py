"""What calls must have in common before any of their captures is looked at: arguments, and torch's settings."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.torch_private import dispatch_modes, function_modes, pytree, transforms
from lazytpu.options import options
from lazytpu.replay.captured import Captured
from lazytpu.replay.code import SIMPLE
from lazytpu.replay.family import Family, Seen
from lazytpu.replay.recording import CallRecorder


class Kind:
    """Calls with arguments of one kind. `leaves` keeps the objects among them, whose ids are in the key, alive."""

    def __init__(self, leaves: list[Any]):
        self.objects = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        self.variants: dict[Any, Captured] = {}  # by family, those used last first
        self.families: dict[Any, Family] = {}
        self.last: Seen | None = None
        self.why: str | None = None
        self.recordings = 0
        self.refusals = 0
        self.refused: str | None = None
        self.leftover = False


def bypassed(mine: Any) -> bool:
    """Whether calls in this thread are neither captured nor replayed now."""
    return (
        isinstance(mine, CallRecorder)
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
