"""Kernels that allocate memory: empty tensors use no buffer until they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend import tensors, unwritten
from lazytpu.frontend.device import indices
from lazytpu.trace.value import row_major


def check_device(device: torch.device | None) -> None:
    """Raise RuntimeError for a "tpu" that is not the device of this process."""
    if device is not None and device.type == "tpu" and device.index not in (None, 0):
        indices.check(device.index)


def is_elsewhere(arguments: Mapping[str, Any]) -> bool:
    """Return whether a recorded op would create a tensor on another device: zeros_like(x, device="cpu")."""
    device = arguments.get("device")
    return device is not None and device.type != "tpu" and "self" in arguments


def elsewhere(op: OpOverload, given: Mapping[str, Any]) -> torch.Tensor:
    """Run such an op on the device that it names.

    torch selects the kernel by the device of `self`, so `self` is replaced by a tensor there, of the same size and
    strides.
    """
    like = given["self"]
    stand_in = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=given["device"])
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only and a.name in given]
    keywords = {name: value for name, value in given.items() if name not in positional}
    return op(*[stand_in if name == "self" else given[name] for name in positional], **keywords)


def empty_memory_format(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """The kernel of aten::empty.memory_format."""
    check_device(device)
    _check_layout(layout, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    shape = tuple(size)
    stride = row_major(shape)
    if memory_format not in (None, torch.contiguous_format):
        stride = tuple(torch.empty(shape, device="meta", memory_format=memory_format).stride())
    elif any(n < 0 for n in shape):
        torch.empty(shape, device="meta")  # raises torch's own error
    return unwritten.fill(tensors.empty(shape, stride, dtype))


def empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """The kernel of aten::empty_strided."""
    check_device(device)
    _check_layout(layout, pin_memory)
    if len(size) != len(stride) or any(n < 0 for n in (*size, *stride)):
        torch.empty_strided(size, stride, device="meta")  # raises torch's own error
    return unwritten.fill(tensors.empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype()))


def check_layout(layout: torch.layout | None, memory_format: torch.memory_format | None = None) -> None:
    """Raise an error for a tensor that is not dense: RuntimeError, as torch does, if it is to have a memory format."""
    if layout not in (None, torch.strided):
        if memory_format is not None:
            raise RuntimeError("memory format option is only supported by strided tensors")
        raise NotImplementedError(f"{layout} tensors are not supported on 'tpu': use a dense tensor (.to_dense())")


def _check_layout(layout: torch.layout | None, pin_memory: bool | None) -> None:
    check_layout(layout)
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


KERNELS: dict[str, Any] = {"empty.memory_format": empty_memory_format, "empty_strided": empty_strided}
