"""Ops whose result's shape depends on values: the size is read (a cut), and the op is recorded with that size."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import lazytpu.frontend.inference.histograms  # noqa: F401 (its meta functions register)
from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import infer, override
from lazytpu.frontend.ops.counts import counts
from lazytpu.frontend.ops.known_counts import count_of
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.recording.writes import warn_of_expanded

aten = torch.ops.aten
LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("nonzero(Tensor self, int count) -> Tensor")
OPS: Any = torch.ops.lazytpu


@override("lazytpu.nonzero.default")
def infer_nonzero(self: torch.Tensor, count: int) -> torch.Tensor:
    """Return a transpose, like the CPU's result: the indices of each dimension are contiguous."""
    return torch.empty((self.dim(), count), dtype=torch.int64, device="meta").t()


def nonzero(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::nonzero, shape (count, dims), int64: the count is read, and the indices are computed on the
    device.

    In a graph that is captured as a whole, the count is assumed.
    """
    graph = counts()
    if graph is not None and tensor.numel() and tensor.dim():
        return kernel(OPS.nonzero.default).call(tensor, graph.of(tensor))
    count = count_of(tensor) if tensor.numel() else 0
    if tensor.dim() == 0 or count == 0:
        return torch.empty_strided((count, tensor.dim()), (1, count), dtype=torch.int64, device=tensor.device)
    return kernel(OPS.nonzero.default).call(tensor, count)


def masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::masked_select, shape (count,)."""
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    tensor, mask = torch.broadcast_tensors(tensor, mask)
    return tensor.reshape(-1).index_select(0, nonzero(mask.reshape(-1)).reshape(-1))


def _on_device(index: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """Move an index to the device: torch accepts CPU indices for a tensor on another device."""
    if index is None or index.device == device:
        return index
    return index.to(device)


def plain_indices(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return the indices, with masks converted to integer indices.

    Raises IndexError, as torch does, for a mask whose shape differs from the tensor's at its position.
    """
    plain: list[torch.Tensor | None] = []
    for index in indices:
        index = _on_device(index, tensor.device)
        if index is None or index.dtype in (torch.int64, torch.int32):
            plain.append(index)
            continue
        if index.dtype not in (torch.bool, torch.uint8):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        if index.dtype is torch.uint8:
            message = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
            warnings.warn(message, UserWarning, stacklevel=3)
        start = len(plain)
        for i, size in enumerate(index.shape):
            if start + i >= tensor.dim() or size != tensor.shape[start + i]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {i} does not match the shape of the indexed "
                    f"tensor {list(tensor.shape)} at index {start + i}"
                )
        plain.extend(nonzero(index).unbind(1))
    return plain


def index(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """The kernel of aten::index.Tensor."""
    return kernel(aten.index.Tensor).call(tensor, plain_indices(tensor, indices))


def _fits_mask(tensor: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor) -> bool:
    """Return whether `indices` is a single mask, and the values' shape is possible for some number of true elements."""
    masks = [(i, m) for i, m in enumerate(indices) if m is not None]
    if len(masks) != 1 or masks[0][1].dtype is not torch.bool:
        return False
    dim, mask = masks[0]
    stop = dim + mask.dim()
    if mask.dim() == 0 or mask.device != tensor.device or mask.shape != tensor.shape[dim:stop]:
        return False
    needed = [*tensor.shape[:dim], None, *tensor.shape[stop:]]
    sizes = list(values.shape)
    fitting = zip(reversed(sizes), reversed(needed), strict=False)
    return len(sizes) <= len(needed) and all(size in (1, expected) or expected is None for size, expected in fitting)


def index_put_(
    tensor: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    *_: Any,
) -> torch.Tensor:
    """The kernel of aten::index_put_ and aten::_index_put_impl_. A write through a single mask needs no sizes."""
    if values.dtype is not tensor.dtype:
        fitting = torch.empty_like(values, dtype=tensor.dtype)
        bound = {"self": tensor, "indices": plain_indices(tensor, indices), "values": fitting, "accumulate": accumulate}
        infer(aten.index_put_.default, bound)  # torch checks shapes first
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{scalar_type(tensor.dtype)} for the destination and {scalar_type(values.dtype)} for the source."
        )
    if values.device.type == "cpu" and values.dim() == 0:
        values = values.to(tensor.device)
    if not indices:
        raise RuntimeError("index_put_ expects at least one index, but got none")
    mask = indices[0]
    masked = mask is not None and mask.dtype in (torch.bool, torch.uint8)
    if len(indices) == 1 and masked and values.numel() == 1 and not accumulate:
        mask = _on_device(mask, tensor.device)
        if mask is not None and mask.shape == tensor.shape[: mask.dim()]:
            if mask.dtype is torch.uint8:
                raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")
            warn_of_expanded(aten.index_put_.default, {"self": tensor})
            mask = mask.reshape(*mask.shape, *[1] * (tensor.dim() - mask.dim()))
            return kernel(aten.masked_fill_.Tensor).call(tensor, mask, values.reshape(()))
    if _fits_mask(tensor, indices, values):
        return kernel(aten.index_put_.default).call(tensor, indices, values, accumulate)
    return kernel(aten.index_put_.default).call(tensor, plain_indices(tensor, indices), values, accumulate)


def index_put(
    tensor: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """The kernel of aten::index_put."""
    return index_put_(tensor.clone(), indices, values, accumulate)


def _check_filling(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if value.is_complex() and not tensor.is_complex():
        raise RuntimeError(f"value cannot be converted to type {scalar_type(tensor.dtype)} without overflow")


def masked_fill(tensor: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::masked_fill.Tensor.

    A complex number is always rejected, as by torch's meta function; the CPU accepts it if its imaginary part is 0.
    """
    _check_filling(tensor, value)
    return kernel(aten.masked_fill.Tensor).call(tensor, mask, value)


def masked_fill_(tensor: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::masked_fill_.Tensor."""
    _check_filling(tensor, value)
    return kernel(aten.masked_fill_.Tensor).call(tensor, mask, value)


KERNELS: dict[str, Any] = {
    "masked_fill.Tensor": masked_fill,
    "masked_fill_.Tensor": masked_fill_,
    "nonzero": nonzero,
    "masked_select": masked_select,
    "index.Tensor": index,
    "index_put_": index_put_,
    "_index_put_impl_": index_put_,
    "index_put": index_put,
}
