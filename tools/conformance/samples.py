"""Places a sample on a device: tensors keep their strides, offsets and shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import SampleInput

# (input, args, kwargs) of a call
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def call_of(sample: SampleInput) -> Call:
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def tree_map(f: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with every leaf x replaced by f(x): lists, tuples, named tuples and dicts keep their types."""
    if isinstance(tree, dict):
        return {key: tree_map(f, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        values = [tree_map(f, value) for value in tree]
        if isinstance(tree, list):
            return values
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return f(tree)


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors in a tree, in order."""
    leaves: list[torch.Tensor] = []
    tree_map(lambda leaf: leaves.append(leaf) if isinstance(leaf, torch.Tensor) else None, tree)
    return leaves


def describe(call: Call, limit: int = 200) -> str:
    """Return the call for a message: tensors as float32[3, 4], with unusual strides."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        usual = x.layout is not torch.strided or x.is_contiguous()
        return _Shown(f"{x.dtype}{list(x.shape)}".removeprefix("torch.") + ("" if usual else f" strides {x.stride()}"))

    first, args, kwargs = tree_map(leaf, call)
    text = ", ".join([repr(first), *map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
    return text if len(text) <= limit else text[: limit - 1] + "…"


class _Shown(str):
    """Text without quotes."""

    __repr__ = str.__str__


class Placed:
    """One call's arguments on a device, uploaded once; `take` returns them for a check."""

    def __init__(self, call: Call, device: str):
        self.call, self.device = call, device
        self.always_fresh = device == "cpu"  # a copy costs nothing there
        self._whole: dict[int, torch.Tensor] = {}

    def take(self, fresh: bool = False, grad: bool = False) -> Call:
        """The arguments. `fresh` for a check that writes them: copies. `grad`: leaves that ask for a gradient."""
        taken: dict[int, torch.Tensor] = {}  # a repeated tensor stays one tensor

        def leaf(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                if id(x) not in taken:
                    placed = self._tensor(x, fresh or self.always_fresh)
                    taken[id(x)] = placed.requires_grad_(True) if grad and x.requires_grad else placed
                return taken[id(x)]
            if isinstance(x, torch.Generator):
                return torch.Generator(self.device).manual_seed(x.initial_seed())
            if isinstance(x, torch.device):
                return torch.device(self.device)
            return self.device if isinstance(x, str) and x == "cpu" else x

        return tree_map(leaf, self.call)

    def _tensor(self, x: torch.Tensor, fresh: bool) -> torch.Tensor:
        plain = x.detach().resolve_conj().resolve_neg()
        copied = plain.clone()
        if plain.layout is not torch.strided:
            return copied.to(self.device)
        view = copied.stride() != plain.stride() or _bytes(copied) != _bytes(plain)
        if id(x) not in self._whole:
            self._whole[id(x)] = (_storage(plain) if view else copied).to(self.device)
        storage = self._whole[id(x)].clone() if fresh else self._whole[id(x)].detach()
        return storage.as_strided(plain.shape, plain.stride(), plain.storage_offset()) if view else storage


def _bytes(x: torch.Tensor) -> int:
    return x.untyped_storage().nbytes()


def _storage(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor's whole storage, as one row."""
    return x.as_strided((_bytes(x) // x.itemsize,), (1,), 0).clone()


def noncontiguous(call: Call) -> Call | None:
    """The call with each contiguous tensor replaced by a view whose gaps hold NaN; None where there is none."""
    if not any(t.numel() > 1 and t.layout is torch.strided and t.is_contiguous() for t in tensors(call)):
        return None

    def leaf(x: Any) -> Any:
        strided = isinstance(x, torch.Tensor) and x.layout is torch.strided and x.numel() > 1
        return noncontiguous_like(x).detach() if strided else x

    with torch.no_grad():
        return tree_map(leaf, call)
