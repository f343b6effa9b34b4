"""Methods of the device's storages: the part of `torch.UntypedStorage` that other devices implement in C++.

torch.save, torch.load and deepcopy work on storages, so tensors that share memory still share it afterwards; pickle
writes a separate storage for each tensor, as torch does for the CPU. A storage of the device is an empty native storage
whose Python object has a `_value`. So its size, address and bytes are answered here. Storages of other devices go to
torch's own methods.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from lazytpu.frontend.storage import storages
from lazytpu.frontend.torch_private import StorageBase, TensorBase

Storage = torch.UntypedStorage


def _is_tpu(storage: Any) -> bool:
    return storage.device.type == "tpu"


def _on_tpu(ours: Callable[..., Any], native: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `ours` for storages of the device, and torch's own for all others."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if _is_tpu(self) else native)(self, *args, **kwargs)

    method.__name__, method.__doc__ = native.__name__, native.__doc__
    return method


def _to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    """Return the same bytes on another device; the storage itself if it is there already."""
    device = torch.device(device)
    if device.type == "tpu":
        return self if _is_tpu(self) else storages.from_cpu(self.to(device="cpu"))
    if _is_tpu(self):
        return _native_to(storages.to_cpu(self), device=device)
    return _native_to(self, device=device, non_blocking=non_blocking)


def _copy(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
    """Overwrite this storage's bytes."""
    if _is_tpu(self):
        storages.assign(self, source)
        return self
    source = storages.to_cpu(source) if _is_tpu(source) else source
    return _native_copy(self, source, non_blocking)


def _new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Construct `torch.UntypedStorage(bytes, device="tpu")`: torch's own constructor needs a C++ allocator."""
    if device is None or torch.device(device).type != "tpu":
        if device is not None:
            kwargs["device"] = device
        return StorageBase.__new__(cls, *args, **kwargs)
    (source,) = args or (0,)
    if isinstance(source, int):
        return storages.empty(source)
    return storages.from_cpu(Storage(source))


def _typed_to_tpu(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """Return this storage on the device."""
    return self._new_wrapped_storage(self._untyped_storage.to(device="tpu"))


def _write_file(self: Any, *args: Any) -> None:
    """Write the bytes to a file, for torch.save's format before 1.6."""
    storages.to_cpu(self)._write_file(*args)


def _set_from_file(self: Any, *args: Any) -> None:
    """Overwrite the bytes by the contents of a file, for torch.load of that format."""
    read = torch.UntypedStorage(storages.nbytes(self))
    read._set_from_file(*args)
    storages.assign(self, read)


def _reduce_for_process(self: Any) -> Any:
    """Pickle by value for another process: device memory cannot be shared between processes."""
    return storages.reduce(self) if _is_tpu(self) else reduce_storage(self)


def _tensor_address(self: torch.Tensor) -> int:
    if self.device.type == "tpu" and hasattr(self.untyped_storage(), "_value"):
        return storages.address(self.untyped_storage()) + int(self.storage_offset()) * self.itemsize
    return TensorBase.data_ptr(self)


_native_to, _native_copy = Storage.to, Storage.copy_


def install() -> None:
    """Replace torch's methods by ones that support the device's storages."""
    storage: Any = Storage
    native: Any = StorageBase
    storage.__new__ = staticmethod(_new)
    storage.to, storage.copy_ = _to, _copy
    storage.nbytes = storage.size = _on_tpu(storages.nbytes, native.nbytes)
    storage.__len__ = _on_tpu(storages.nbytes, native.__len__)
    storage.data_ptr = _on_tpu(storages.address, native.data_ptr)
    storage.resize_ = _on_tpu(storages.resize, native.resize_)
    storage._write_file = _on_tpu(_write_file, native._write_file)
    storage._set_from_file = _on_tpu(_set_from_file, native._set_from_file)
    storage.cpu = _on_tpu(storages.to_cpu, storage.cpu)
    storage.clone = _on_tpu(storages.clone, storage.clone)
    storage.tolist = _on_tpu(lambda self: storages.to_cpu(self).tolist(), storage.tolist)
    storage.__getitem__ = _on_tpu(lambda self, i: storages.to_cpu(self)[i], storage.__getitem__)
    storage.__reduce__ = _on_tpu(storages.reduce, storage.__reduce__)
    storage.tpu = lambda self, device=None, non_blocking=False: self.to(device="tpu")
    storage.is_tpu = property(_is_tpu)
    ForkingPickler.register(Storage, _reduce_for_process)
    typed: Any = torch.TypedStorage
    typed.tpu = _typed_to_tpu
    typed.is_tpu = property(lambda self: _is_tpu(self._untyped_storage))
    tensor: Any = torch.Tensor
    tensor.data_ptr = _tensor_address
