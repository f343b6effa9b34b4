"""Kernels that change a tensor's size, stride or storage but compute nothing: as_strided, set_, resize_.

Other views are in views.py."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend import tensors, unwritten
from lazytpu.frontend.ops import views
from lazytpu.frontend.storage import storages
from lazytpu.frontend.torch_private import META, reinterpret, set_storage
from lazytpu.frontend.torch_private import as_strided as native_as_strided
from lazytpu.trace.value import EMPTY, Layout, resident, row_major

_IN_BOUNDS: set[tuple[Any, ...]] = set()  # cache of checked views: transposes and expands repeat in every step
_IN_BOUNDS_LIMIT = 100_000  # views, then the cache starts anew: a step has a few hundred


def as_strided(tensor: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Any:
    """The kernel of aten::as_strided, with the bounds check that the meta kernel omits."""
    own = tensor.storage_offset()
    offset: Any = own if storage_offset is None else storage_offset
    if _check_inside(tensor, size, stride, offset) and views.is_plain(tensor):
        return reinterpret(tensor, tuple(size), tuple(stride), offset - own)  # no list, from torch 2.15 on
    return native_as_strided(META, tensor, size, stride, offset)


def _check_inside(tensor: torch.Tensor, size: list[int], stride: list[int], offset: int) -> bool:
    """Check that the view is inside the tensor's memory. Returns whether the same view was checked before."""
    value = getattr(tensor.untyped_storage(), "_value", None)
    # The tensor has no memory of ours: torch is tracing, or syncing the sizes of a wrapper with its inner tensor.
    if value is None:
        return False
    kind = value.layout
    key = (kind, tensor.dtype, offset, *size, None, *stride)
    if key in _IN_BOUNDS:
        return True
    _check_bounds(kind, tensor.dtype, size, stride, offset)
    if len(_IN_BOUNDS) >= _IN_BOUNDS_LIMIT:
        _IN_BOUNDS.clear()
    _IN_BOUNDS.add(key)
    return False


def _check_bounds(kind: Layout, dtype: torch.dtype, size: list[int], stride: list[int], offset: int) -> None:
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    if any(s < 0 for s in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    available = tensors.extent(kind.shape, kind.stride) * kind.dtype.itemsize
    needed = (offset + tensors.extent(tuple(size), tuple(stride))) * dtype.itemsize
    if needed > available and 0 not in size:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"{dtype.itemsize} requiring a storage size of {needed} are out of bounds for storage of size {available}"
        )


def as_strided_(
    tensor: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """The kernel of aten::as_strided_, which implements squeeze_ and similar ops."""
    offset: Any = tensor.storage_offset() if storage_offset is None else storage_offset
    _check_inside(tensor, size, stride, offset)
    return set_storage(META, tensor, tensor.untyped_storage(), offset, list(size), list(stride))


def set_storage_offset(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: list[int], stride: list[int] | None = None
) -> torch.Tensor:
    """The kernel of aten::set_.source_Storage_storage_offset."""
    if "_bytes" in storage.__dict__:  # created from a CPU storage: the first tensor set on it determines its dtype
        storages.settle(storage, tensor.dtype, offset, tuple(size), tuple(stride) if stride else row_major(tuple(size)))
    strides = stride if stride else row_major(tuple(size))
    return set_storage(META, tensor, storage, offset, list(size), list(strides))


def set_source_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """The kernel of aten::set_.source_Storage: the whole storage, flat."""
    return set_storage_offset(tensor, storage, 0, [storage.nbytes() // tensor.dtype.itemsize], [1])


def set_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::set_.source_Tensor."""
    return set_storage_offset(
        tensor, source.untyped_storage(), int(source.storage_offset()), list(source.shape), list(source.stride())
    )


def set_empty(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::set_: an empty tensor of the same dtype."""
    return set_tensor(tensor, tensors.empty((0,), (1,), tensor.dtype))


def resize(tensor: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """The kernel of aten::resize_: the storage keeps its elements, in order, and grows when the new size needs more."""
    shape = tuple(size)
    if any(n < 0 for n in shape):
        torch.empty(shape, device="meta")  # raises torch's own error
    if memory_format in (None, torch.contiguous_format):
        stride = row_major(shape)
    else:
        stride = tuple(torch.empty(shape, device="meta", memory_format=memory_format).stride())
    if tuple(tensor.shape) == shape and (memory_format is None or tuple(tensor.stride()) == stride):
        return tensor
    storage: Any = tensor.untyped_storage()
    kind = storage._value.layout
    available = tensors.extent(kind.shape, kind.stride) * kind.dtype.itemsize // tensor.dtype.itemsize
    needed = int(tensor.storage_offset()) + tensors.extent(shape, stride)
    if needed > available:
        grow_storage(tensor, available, needed)
        unwritten.fill(native_as_strided(META, tensor, [needed - available], [1], available))
    return set_storage(META, tensor, storage, tensor.storage_offset(), list(shape), list(stride))


def grow_storage(tensor: torch.Tensor, held: int, needed: int) -> None:
    """Enlarge the tensor's storage to `needed` elements of its dtype; the first `held` keep their values."""
    if held == 0 or tensors.value_of(tensor).buffer is EMPTY:
        tensors.assign(tensor, resident(tensors.layout(tensor.dtype, (needed,), (1,)), EMPTY))
        return
    old = native_as_strided(META, tensor, [held], [1], 0)
    grown = tensors.empty((needed,), (1,), tensor.dtype)
    native_as_strided(META, grown, [held], [1], 0).copy_(old)
    tensors.assign(tensor, tensors.value_of(grown))


def new_zeros_with_same_feature_meta(
    tensor: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """The kernel of aten::_new_zeros_with_same_feature_meta, which creates tangents of forward-mode AD: zeros laid out
    as `other`, with the leading batch dimensions of `tensor`.

    torch's own kernel needs the size of the storage, which only we know. Either of the two may be on the CPU.
    """
    step = other.untyped_storage().nbytes() // other.dtype.itemsize
    batch = list(tensor.shape[:self_num_batch_dims])
    strides = [step * s for s in row_major(tuple(batch))]
    total = step
    for size in batch:
        total *= size
    zeros = torch.zeros(total, dtype=other.dtype, device=other.device)
    return zeros.as_strided([*batch, *other.shape], [*strides, *other.stride()], int(other.storage_offset()))


def is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """The kernel of aten::is_set_to: whether both are the same view of the same storage."""
    return (
        tensor.untyped_storage() is other.untyped_storage()
        and tensor.storage_offset() == other.storage_offset()
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )


KERNELS: dict[str, Any] = {
    "is_set_to": is_set_to,
    "_new_zeros_with_same_feature_meta": new_zeros_with_same_feature_meta,
    "as_strided": as_strided,
    "as_strided_": as_strided_,
    "set_.source_Storage_storage_offset": set_storage_offset,
    "set_.source_Storage": set_source_storage,
    "set_.source_Tensor": set_tensor,
    "set_": set_empty,
    "resize_": resize,
}
