"""DLPack: consumers get a copy on the host. The memory of a tpu tensor belongs to XLA, several tensors may share it,
and a program may reuse it for its results. So a consumer could neither write to it nor rely on it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from lazytpu.frontend import activation
from lazytpu.frontend.torch_private import has_tensors_inside, to_dlpack

_CPU, _OTHER = (DLDeviceType.kDLCPU, 0), (DLDeviceType.kDLExtDev, 0)
_dlpack, _dlpack_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__


def dlpack(
    self: torch.Tensor, *, stream: Any = -1, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """Replace torch.Tensor.__dlpack__; for a tpu tensor, return a copy on the CPU.

    Raises BufferError for a consumer that accepts no copy or requests an accelerator's memory, and torch's errors for a
    tensor that requires a gradient or is not strided.
    """
    if self.device.type == "tpu":
        if self.is_conj():  # the copy would not be conjugated
            raise BufferError("Can't export tensors with the conjugate bit set")
        self, dl_device, copy, stream = _copied(self, dl_device, copy), None, None, None
    return _dlpack(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def dlpack_device(self: torch.Tensor) -> Any:
    """Replace torch.Tensor.__dlpack_device__; for a tpu tensor, return the CPU where XLA runs on it, else a device
    without a DLPack name."""
    if self.device.type == "tpu":
        return _CPU if _on_host() else _OTHER
    return _dlpack_device(self)


def host_to_dlpack(tensor: torch.Tensor, *, dl_device: Any = None, copy: bool | None = None) -> Any:
    """Replace torch.utils.dlpack.to_dlpack; for a tpu tensor, return a copy on the CPU, with the errors of `dlpack`."""
    if tensor.device.type == "tpu":
        tensor, dl_device, copy = _copied(tensor, dl_device, copy), None, None
    return to_dlpack(tensor, dl_device=dl_device, copy=copy)


def _on_host() -> bool:
    return activation.device().properties().platform == "cpu"


def _copied(tensor: torch.Tensor, dl_device: Any, copy: bool | None) -> torch.Tensor:
    """Return the tensor on the CPU, in memory of its own, if the consumer accepts a copy."""
    if has_tensors_inside(tensor):  # on the CPU, a wrapper has no memory either
        raise BufferError(f"Can't export a {type(tensor).__name__}, which only holds tensors: export those")
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
