"""Kernels of views: torch's own views of the same storage.

A view's size, stride and offset follow from the size and stride of the viewed tensor and from the other arguments.
torch's kernel computes them once for each such combination. From then on a view costs one Python call, which creates
the tensor without the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lazytpu.frontend.torch_private import META, in_inference_mode, native, reinterpret

aten = torch.ops.aten

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
"Size, stride and, in elements, the offset from that of the viewed tensor."

_LIMIT = 100_000  # geometries of one op: a loop over x[i] has one for each i
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether `reinterpret` views the tensor as torch's kernels do: it has no subclass with a dispatch of its
    own, and was created in inference mode if, and only if, that is on."""
    return type(tensor) in PLAIN and tensor.is_inference() is in_inference_mode()


def _geometry(tensor: torch.Tensor, view: torch.Tensor) -> Geometry:
    return tuple(view.shape), view.stride(), int(view.storage_offset() - tensor.storage_offset())


def _remember(known: dict[Any, Any], key: Any, geometry: Any) -> None:
    if len(known) >= _LIMIT:
        known.clear()
    known[key] = geometry


def _by_numbers(op: Any) -> Callable[..., torch.Tensor]:
    """Return the kernel of a view whose other arguments are integers."""
    run, known = native(op), dict[Any, Geometry]()

    def view(tensor: torch.Tensor, *numbers: Any) -> torch.Tensor:
        key = (tensor.shape, tensor.stride(), numbers)
        geometry = known.get(key)
        if geometry is not None and type(tensor) in PLAIN and tensor.is_inference() is in_inference_mode():
            return reinterpret(tensor, *geometry)
        made = run(META, tensor, *numbers)
        _remember(known, key, _geometry(tensor, made))
        return made

    return view


def _by_list(op: Any) -> Callable[..., torch.Tensor]:
    """Return the kernel of a view with one list, of sizes or dimensions. Keyword arguments do not affect it."""
    run, known = native(op), dict[Any, Geometry]()

    def view(tensor: torch.Tensor, numbers: list[int], **options: Any) -> torch.Tensor:
        key = (tensor.shape, tensor.stride(), *numbers)
        geometry = known.get(key)
        if geometry is not None and type(tensor) in PLAIN and tensor.is_inference() is in_inference_mode():
            return reinterpret(tensor, *geometry)
        made = run(META, tensor, numbers, **options)
        _remember(known, key, _geometry(tensor, made))
        return made

    return view


def _several(op: Any) -> Callable[..., list[torch.Tensor]]:
    """Return the kernel of an op that views a tensor in pieces."""
    run, known = native(op), dict[Any, list[Geometry]]()

    def pieces(tensor: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
        key = (tensor.shape, tensor.stride(), *[tuple(a) if type(a) is list else a for a in arguments])
        geometries = known.get(key)
        if geometries is not None and type(tensor) in PLAIN and tensor.is_inference() is in_inference_mode():
            return [reinterpret(tensor, *geometry) for geometry in geometries]
        made = run(META, tensor, *arguments)
        _remember(known, key, [_geometry(tensor, piece) for piece in made])
        return made

    return pieces


def _native(op: Any) -> Any:
    """Return torch's own meta kernel, which runs on the tpu tensor itself: a true view, sharing the storage."""
    return partial(native(op), META)


KERNELS: dict[str, Any] = {
    "_reshape_alias": _native(aten._reshape_alias.default),
    "_unsafe_view": _by_list(aten.view.default),
    "expand": _by_list(aten.expand.default),
    "permute": _by_list(aten.permute.default),
    "select.int": _by_numbers(aten.select.int),
    "slice.Tensor": _by_numbers(aten.slice.Tensor),
    "split.Tensor": _several(aten.split.Tensor),
    "split_with_sizes": _several(aten.split_with_sizes.default),
    "squeeze": _by_numbers(aten.squeeze.default),
    "squeeze.dim": _by_numbers(aten.squeeze.dim),
    "t": _by_numbers(aten.t.default),
    "transpose.int": _by_numbers(aten.transpose.int),
    "unbind.int": _several(aten.unbind.int),
    "unfold": _by_numbers(aten.unfold.default),
    "unsqueeze": _by_numbers(aten.unsqueeze.default),
    "view": _by_list(aten.view.default),
    "view.dtype": _native(aten.view.dtype),
    "view_as_complex": _native(aten.view_as_complex.default),
    "view_as_real": _native(aten.view_as_real.default),
}
