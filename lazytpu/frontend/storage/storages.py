"""Operations on storages of the device: size, address and bytes, copies, and creation from bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from lazytpu.frontend import activation, tensors
from lazytpu.frontend.torch_private import StorageBase
from lazytpu.trace.value import EMPTY, Layout, Value, resident

# A storage created from a CPU storage's bytes (torch.load) has no dtype until a tensor is set on it. Until then the
# bytes are kept as `_bytes`. Then they move to the device in the dtype and layout of that tensor (`settle`).


def _make(value: Value) -> Any:
    return tensors.wrap(value).untyped_storage()


def _flat(dtype: torch.dtype, count: int) -> Layout:
    return tensors.layout(dtype, (count,), (1,))


def nbytes(storage: Any) -> int:
    """Return the number of bytes of the storage's elements."""
    value = getattr(storage, "_value", None)
    if value is None:  # a wrapper of other tensors: it only knows how large it would be
        return StorageBase.nbytes(storage)  # pyright: ignore[reportAttributeAccessIssue]
    kind = value.layout
    return tensors.extent(kind.shape, kind.stride) * kind.dtype.itemsize


def address(storage: Any) -> int:
    """Return a number that is unique among living storages, in place of a memory address; 0 for no bytes, as in torch.

    Code that detects shared memory compares addresses; nothing can be read there.
    """
    _check(storage)
    return id(storage) << 16 if nbytes(storage) else 0


def _check(storage: Any) -> None:
    """Raise torch's RuntimeError for the storage of a wrapper tensor, which has no memory."""
    if not hasattr(storage, "_value"):
        raise RuntimeError("Attempted to access the data pointer on an invalid python storage.")


def empty(size: int) -> Any:
    """Create a storage of `size` bytes that nothing has written; it takes no memory."""
    activation.activate()
    return _make(resident(_flat(torch.uint8, size), EMPTY))


def from_cpu(source: torch.UntypedStorage) -> Any:
    """Create a storage with a snapshot of a CPU storage's bytes."""
    storage = empty(source.nbytes())
    storage._bytes = source.clone()
    return storage


def settle(
    storage: Any, dtype: torch.dtype = torch.uint8, offset: int = 0, size: Any = None, stride: Any = None
) -> None:
    """Move the bytes of a storage created by `from_cpu` to the device, if that has not happened yet.

    They are laid out like a tensor (dtype, offset, size, stride) that covers all of them, else flat.
    """
    pending: torch.UntypedStorage | None = storage.__dict__.pop("_bytes", None)
    if pending is None:
        _check(storage)
        return
    from lazytpu.frontend.storage.copies import from_cpu as value_from_cpu

    flat = _as_bytes(pending)
    if pending.nbytes() % dtype.itemsize == 0:
        flat = flat.view(dtype)
    if offset == 0 and size is not None and flat.numel() == prod(size) and tensors.is_dense(tuple(size), tuple(stride)):
        flat = flat.as_strided(size, stride)
    storage._value = value_from_cpu(flat)


def to_cpu(storage: Any) -> torch.UntypedStorage:
    """Return a new CPU storage with the bytes, after waiting for them."""
    if (held := storage.__dict__.get("_bytes")) is not None:
        return held.clone()
    _check(storage)
    from lazytpu.frontend.storage.copies import to_cpu as tensor_to_cpu

    return tensor_to_cpu(tensors.wrap(storage._value)).untyped_storage()


def clone(storage: Any) -> Any:
    """Return a new storage with the same contents. Values are immutable, so both share one until either is written."""
    settle(storage)
    return _make(storage._value)


def assign(storage: Any, source: Any) -> None:
    """Overwrite the storage by the bytes of another one, of the same size, on any device."""
    if source.nbytes() != nbytes(storage):
        raise RuntimeError(f"size does not match, self was {nbytes(storage)} bytes but src was {source.nbytes()} bytes")
    settle(storage)
    kind = storage._value.layout
    if source.device.type == "tpu":
        settle(source, kind.dtype)
        if source._value.layout is kind:
            tensors.recorder().assign(storage, source._value)
            return
        source = to_cpu(source)
    uploaded = from_cpu(source.to(device="cpu"))
    settle(uploaded, kind.dtype, 0, kind.shape, kind.stride)
    tensors.recorder().assign(storage, uploaded._value)


def resize(storage: Any, size: int) -> Any:
    """Change the number of bytes; the first ones keep their values. Size 0 frees the memory, as FSDP does with full
    parameters."""
    settle(storage)
    value = storage._value
    if size == nbytes(storage):
        return storage
    if size == 0 or value.buffer is EMPTY:
        tensors.recorder().assign(storage, resident(_resized(storage, size), EMPTY))
        return storage
    grown = torch.UntypedStorage(size)
    common = min(size, nbytes(storage))
    _as_bytes(grown)[:common] = _as_bytes(to_cpu(storage))[:common]
    uploaded = from_cpu(grown)
    settle(uploaded, value.layout.dtype)
    tensors.recorder().assign(storage, uploaded._value)
    return storage


def _resized(storage: Any, size: int) -> Layout:
    """Return the layout for `size` bytes: the storage's original layout if it had that size, else a flat one."""
    kind = storage._value.layout
    natural = storage.__dict__.setdefault("_natural", kind)
    if tensors.extent(natural.shape, natural.stride) * natural.dtype.itemsize == size:
        return natural
    count, remainder = divmod(size, kind.dtype.itemsize)
    return _flat(torch.uint8, size) if remainder else _flat(kind.dtype, count)


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a uint8 tensor on a CPU storage."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)  # pyright: ignore[reportArgumentType]


def reduce(storage: Any) -> Any:
    """Pickle the storage as its bytes."""
    return restore, (_as_bytes(to_cpu(storage)).numpy().tobytes(),)


def restore(data: bytes) -> Any:
    """Return a storage of the device with these bytes."""
    return from_cpu(torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()) if data else empty(0)
