"""Optimizers and gradient clipping for modules that mix tensors with DTensors, or DTensors of several meshes.

On devices, torch by default passes all parameters of one device and dtype as one list to the foreach ops, which reject
such mixtures. Here each mesh, and the plain tensors, get a list of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import compress
from typing import Any

import torch

from lazytpu.frontend.torch_private import GROUPINGS


class _Kind(tuple[Any, ...]):
    """A (device, dtype) key that equals only itself, so that a dictionary can hold several equal pairs."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def _by_kind(native: Callable[..., Any], kind_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap torch's grouping of tensor lists, so that each value of `kind_of` forms its own group."""

    @wraps(native)
    def grouped(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
        groups = native(lists, with_indices)
        if torch.compiler.is_compiling():
            return groups
        split: dict[Any, Any] = {}
        for key, (tensors, indices) in groups.items():
            kinds = [kind_of(tensor) for tensor in tensors[0]]
            if len(set(kinds)) <= 1:
                split[key] = tensors, indices
                continue
            for kind in dict.fromkeys(kinds):
                chosen = [tensor == kind for tensor in kinds]
                selected = [list(compress(tensor, chosen)) for tensor in tensors]
                split[_Kind(key)] = selected, list(compress(indices, chosen))
        return split

    return grouped


def adapt(kind: Any) -> None:
    """Patch torch's grouping of tensor lists, once DTensor (`kind`) is imported."""

    def kind_of(tensor: Any) -> int:
        return id(tensor._spec.mesh) if type(tensor) is kind else 0

    for place in GROUPINGS:
        place.set(_by_kind(place.get(), kind_of))
