"""Copies that preserve the memory of a view, gaps included; recorded as views and ordinary copies. Also results that
torch creates with gaps.

The sizes and strides of as_strided_copy and as_strided_scatter refer to that memory. The other scatters give their
result the strides of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.grouped import aligned
from lazytpu.frontend.ops.metadata import as_strided
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.recording.overlap import Internal, internal_overlap
from lazytpu.frontend.storage.copies import clone
from lazytpu.frontend.tensors import extent, is_dense, value_of

aten = torch.ops.aten


def as_strided_copy(
    tensor: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """The kernel of aten::as_strided_copy; the result is contiguous."""
    return clone(as_strided(tensor, size, stride, storage_offset), memory_format=torch.contiguous_format)


def _clone_of_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Copy all memory behind a tensor, and return the same view of the copy.

    Copies the tensor alone if it overlaps itself (`clone_preserve_strides` in TensorShape.cpp).
    """
    if internal_overlap(tensor) is Internal.YES:
        return clone(tensor)
    kind = value_of(tensor).layout
    count = extent(kind.shape, kind.stride) * kind.dtype.itemsize // tensor.dtype.itemsize
    memory = clone(as_strided(tensor, [count], [1], 0))
    return as_strided(memory, list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset()))


def as_strided_scatter(
    tensor: torch.Tensor,
    source: torch.Tensor,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """The kernel of aten::as_strided_scatter. Raises RuntimeError, as torch does, for a source that is not of
    `size`."""
    return _written(tensor, source, lambda result: as_strided(result, size, stride, storage_offset))


def _written(tensor: torch.Tensor, source: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Copy the tensor with its memory, gaps included, and write `source` to a view of the copy."""
    result = _clone_of_memory(tensor)
    window = view(result)
    if window.shape != source.shape:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(source.shape)}, slice size = {list(window.shape)}"
        )
    window.copy_(source)
    return result


def _scattering(op: OpOverload, view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the kernel of a scatter into `view`. It is recorded directly, unless the input has gaps, which the result
    must preserve."""

    def scatter(tensor: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_dense(tuple(tensor.shape), tuple(tensor.stride())) or internal_overlap(tensor) is Internal.YES:
            return kernel(op).call(tensor, source, *args, **kwargs)
        return _written(tensor, source, lambda result: view(result, *args, **kwargs))

    return scatter


def _copying(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of a copy of a view that has neither a rule nor a decomposition; the result is contiguous."""

    def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        views = view(tensor, *args, **kwargs)
        if isinstance(views, torch.Tensor):
            return clone(views, memory_format=torch.contiguous_format)
        return [clone(piece, memory_format=torch.contiguous_format) for piece in views]

    return copy


def grouped_mm(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The kernel of aten::_grouped_mm, whose result has gaps between its rows unless they are aligned."""
    result: torch.Tensor = kernel(aten._grouped_mm.default).call(*args, **kwargs)
    stride = aligned(list(result.shape), result.element_size())
    if tuple(stride) == result.stride() or not result.numel():
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device).copy_(result)


KERNELS: dict[str, Any] = {
    "_grouped_mm": grouped_mm,
    "_lazy_clone": _clone_of_memory,
    "select_copy.int": _copying(aten.select.int),
    "slice_copy.Tensor": _copying(aten.slice.Tensor),
    "split_copy.Tensor": _copying(aten.split.Tensor),
    "as_strided_copy": as_strided_copy,
    "as_strided_scatter": as_strided_scatter,
    "select_scatter": _scattering(aten.select_scatter.default, aten.select.int),
    "slice_scatter": _scattering(aten.slice_scatter.default, aten.slice.Tensor),
    "diagonal_scatter": _scattering(aten.diagonal_scatter.default, aten.diagonal.default),
}
