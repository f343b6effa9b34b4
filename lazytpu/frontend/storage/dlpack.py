"""DLPack: other libraries get a copy on the host. The memory of a tpu tensor belongs to XLA, several tensors may share
it, and a program may reuse it for its results. So a consumer could neither write to it nor rely on it.

`torch.from_dlpack` and `torch.asarray` return a tensor on the device that shares the storage, as with any other device.
For a capsule of `to_dlpack`, the copy within refers to the exported tensor (`_exported`).
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch
from torch.overrides import handle_torch_function
from torch.utils.dlpack import DLDeviceType

from lazytpu.frontend import activation
from lazytpu.frontend.torch_private import (
    device_constructors,
    function_mode_enabled,
    has_tensors_inside,
    to_dlpack,
    to_dlpack_device,
)

_CPU, _OTHER = (DLDeviceType.kDLCPU, 0), (DLDeviceType.kDLExtDev, 0)
_dlpack, _dlpack_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__
_from_dlpack, _asarray = torch.from_dlpack, torch.asarray

_is_capsule, _pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
_is_capsule.argtypes = _pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer.restype = ctypes.c_void_p
_NAME = b"dltensor"  # of a capsule that no consumer has taken
_Capsule = type(to_dlpack(torch.empty(0, device="cpu")))
_exported: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
"""Copies on the CPU by the pointers of their capsules. The attribute `_exported_from` of a copy is the tensor on the
device. Capsules and their consumers keep copies alive."""


def dlpack(
    self: torch.Tensor, *, stream: Any = -1, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """Replace torch.Tensor.__dlpack__; for a tpu tensor, return a copy on the CPU.

    Raises BufferError for a consumer that accepts no copy or requests an accelerator's memory, and torch's errors for a
    tensor that requires a gradient or is not strided.
    """
    if self.device.type == "tpu":
        _check(self)  # the copy would not be conjugated
        if stream is not None and type(stream) is not int:
            raise TypeError("stream must be ``int`` or ``none``")
        self, dl_device, copy, stream = _copied(self, dl_device, copy), None, None, None
    return _dlpack(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def dlpack_device(self: torch.Tensor) -> Any:
    """Replace torch.Tensor.__dlpack_device__; for a tpu tensor, return the CPU where XLA runs on it, else a device
    without a DLPack name."""
    if self.device.type == "tpu":
        return _CPU if _on_host() else _OTHER
    return _dlpack_device(self)


def host_to_dlpack(tensor: torch.Tensor, *, dl_device: Any = None, copy: bool | None = None) -> Any:
    """Replace torch.utils.dlpack.to_dlpack; for a tpu tensor, return a copy on the CPU, with the errors of `dlpack`.
    `torch.from_dlpack` returns the tensor itself for it, unless the caller requested the CPU."""
    if tensor.device.type != "tpu":
        return to_dlpack(tensor, dl_device=dl_device, copy=copy)
    host: Any = _copied(tensor, dl_device, copy)
    capsule = to_dlpack(host)
    if dl_device is None:
        host._exported_from = _alias(tensor, copy)
        _exported[_pointer(capsule, _NAME)] = host
    return capsule


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
    """Replace torch.utils.dlpack.from_dlpack; a tpu tensor, and a capsule of one, stay on the device and share its
    storage."""
    if not isinstance(ext_tensor, torch.Tensor):
        source = _consumed(ext_tensor) if device is None and copy is None else None
        return _from_dlpack(ext_tensor, device=device, copy=copy) if source is None else source
    if ext_tensor.device.type != "tpu":
        return _from_dlpack(ext_tensor, device=device, copy=copy)
    _check(ext_tensor)
    _check_memory(ext_tensor)
    target = ext_tensor.device if device is None else torch.device(device)
    if target.type == "tpu":
        return _alias(ext_tensor, copy)
    to_dlpack_device(target)  # raises BufferError for "meta"
    if copy is False:
        raise ValueError(
            f"cannot move DLPack tensor from device {ext_tensor.device} to {target} without copying. Set copy=None or "
            "copy=True."
        )
    return _alias(ext_tensor, None).to(target)


def asarray(obj: Any, **options: Any) -> torch.Tensor:
    """Replace torch.asarray; the tpu tensor of a capsule stays on the device and shares its storage.

    Function modes get this function, since they compare it with `torch.asarray`: for example the mode of a default
    device. torch.compile looks functions up by the same name.
    """
    if function_mode_enabled():
        return handle_torch_function(asarray, (), obj, **options)
    if type(obj) is _Capsule and (source := _consumed(obj)) is not None:
        obj = source
    return _asarray(obj, **options)


def _consumed(capsule: Any) -> torch.Tensor | None:
    """Take the tpu tensor out of a capsule of `to_dlpack`; None for any other object."""
    if not _is_capsule(capsule, _NAME) or (host := _exported.get(_pointer(capsule, _NAME))) is None:
        return None
    _from_dlpack(capsule)  # a capsule can be consumed once
    return host._exported_from  # pyright: ignore[reportAttributeAccessIssue]


def _alias(tensor: torch.Tensor, copy: bool | None) -> torch.Tensor:
    """Return a plain tensor that shares the storage, or a copy of it."""
    alias = tensor.detach().as_subclass(torch.Tensor)
    return alias.clone() if copy else alias


def _check(tensor: torch.Tensor) -> None:
    """Raise torch's errors for tensors that DLPack cannot express."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.layout != torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")


def _check_memory(tensor: torch.Tensor) -> None:
    """Raise BufferError for a wrapper, which has no memory on any device."""
    if has_tensors_inside(tensor):
        raise BufferError(f"Can't export a {type(tensor).__name__}, which only holds tensors: export those")


def _on_host() -> bool:
    return activation.device().properties().platform == "cpu"


def _copied(tensor: torch.Tensor, dl_device: Any, copy: bool | None) -> torch.Tensor:
    """Return the tensor on the CPU, in memory of its own, if the consumer accepts a copy."""
    _check_memory(tensor)
    if copy is False:
        raise BufferError("a tpu tensor is exported by DLPack as a copy on the CPU alone, and copy=False asks for none")
    if tuple(dl_device) != _CPU if dl_device is not None else not _on_host():
        raise BufferError(
            "a tpu tensor is exported by DLPack to the CPU alone: ask for that (dl_device=(1, 0), or device='cpu' of "
            "numpy.from_dlpack), or export tensor.cpu()"
        )
    return tensor.cpu()


def install() -> None:
    """Let tpu tensors be exported, too."""
    tensor: Any = torch.Tensor
    tensor.__dlpack__, tensor.__dlpack_device__ = dlpack, dlpack_device
    host_to_dlpack.__doc__ = to_dlpack.__doc__
    torch.utils.dlpack.to_dlpack = host_to_dlpack  # pyright: ignore[reportAttributeAccessIssue]
    torch.to_dlpack = host_to_dlpack
    from_dlpack.__doc__ = _from_dlpack.__doc__
    asarray.__doc__ = _asarray.__doc__
    torch.asarray = asarray
    device_constructors.cache_clear()
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = from_dlpack  # pyright: ignore[reportAttributeAccessIssue]
