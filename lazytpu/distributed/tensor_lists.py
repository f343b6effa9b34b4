"""Optimizers and gradient clipping of modules of which a part alone is in DTensors, or in those of several meshes.

They take the parameters of a device and dtype as one list, which is torch's default for devices, and not for the CPU.
Its ops refuse lists that mix tensors with DTensors, or meshes; so those are lists of their own here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import compress
from typing import Any

import torch

from lazytpu.frontend.torch_private import GROUPINGS


class _Kind(tuple[Any, ...]):
    """A device and a dtype, of which a dictionary may have several."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def _by_kind(native: Callable[..., Any], kind_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(native)
    def grouped(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
        groups = native(lists, with_indices)
        if torch.compiler.is_compiling():
            return groups
        made: dict[Any, Any] = {}
        for key, (tensors, indices) in groups.items():
            kinds = [kind_of(each) for each in tensors[0]]
            if len(set(kinds)) <= 1:
                made[key] = tensors, indices
                continue
            for kind in dict.fromkeys(kinds):
                chosen = [each == kind for each in kinds]
                parts = [list(compress(each, chosen)) for each in tensors]
                made[_Kind(key)] = parts, list(compress(indices, chosen))
        return made

    return grouped


def adapt(kind: Any) -> None:
    """Change how torch groups tensors; `kind` is the class DTensor."""

    def kind_of(tensor: Any) -> int:
        return id(tensor._spec.mesh) if type(tensor) is kind else 0

    for place in GROUPINGS:
        place.set(_by_kind(place.get(), kind_of))
