"""DLPack: the memory of a tpu tensor belongs to XLA and has no address, so only a copy on the CPU can be exported."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.torch_private import to_dlpack

_CPU = (1, 0)  # (kDLCPU, index) of DLPack's DLDevice
_REFUSED = (
    "a tpu tensor cannot be exported by DLPack: its memory belongs to XLA and may not be computed yet. "
    "Export a copy on the CPU instead: tensor.cpu()"
)
_dlpack, _dlpack_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__


def dlpack(
    self: torch.Tensor, *, stream: Any = -1, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """torch.Tensor.__dlpack__. Of a tpu tensor, a consumer that asks for the CPU gets a copy there.

    Anything else raises BufferError, as the array API standard has it.
    """
    if self.device.type == "tpu":
        if dl_device is None or tuple(dl_device) != _CPU or copy is False:
            raise BufferError(_REFUSED)
        self, copy, stream = self.detach().cpu(), None, None
    return _dlpack(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def dlpack_device(self: torch.Tensor) -> Any:
    """torch.Tensor.__dlpack_device__"""
    if self.device.type == "tpu":
        raise BufferError(_REFUSED)
    return _dlpack_device(self)


def checked_to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.utils.dlpack.to_dlpack"""
    if tensor.device.type == "tpu":
        raise BufferError(_REFUSED)
    return to_dlpack(tensor, *args, **kwargs)


def install() -> None:
    """Refuse what would hand out an address that is none."""
    tensor: Any = torch.Tensor
    tensor.__dlpack__, tensor.__dlpack_device__ = dlpack, dlpack_device
    checked_to_dlpack.__doc__ = to_dlpack.__doc__
    torch.utils.dlpack.to_dlpack = checked_to_dlpack  # pyright: ignore[reportAttributeAccessIssue]
    torch.to_dlpack = checked_to_dlpack
