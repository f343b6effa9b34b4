"""`out=` overloads of ops that create tensors from numbers alone: computed in the dtype of the out tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.recording.out import out_kernel

_OPTIONS = ["dtype", "layout", "device", "pin_memory"]
# These fill a tensor of as many elements, whatever its shape is.
_KEEP_SHAPE = ("aten.arange", "aten.range", "aten.linspace", "aten.logspace")


def factory(op: OpOverload) -> OpOverload | None:
    """Return the overload that returns the result that `op` writes to `out`: the same arguments, and the options of a
    new tensor."""
    names = [a.name for a in op._schema.arguments if a.name != "out"]
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::"))
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if [a.name for a in overload._schema.arguments] == names + _OPTIONS and _types(overload) == _types(op):
            return overload
    return None


def _types(op: OpOverload) -> list[str]:
    return [str(a.type) for a in op._schema.arguments if a.name != "out" and a.name not in _OPTIONS]


def factory_kernel(op: OpOverload, make: OpOverload) -> Callable[..., torch.Tensor]:
    """Return the kernel of the out= overload `op`, which computes the result of `make`."""
    store = out_kernel(op, lambda result: result, torch.Tensor.copy_)
    keeps_shape = str(op).startswith(_KEEP_SHAPE)

    def kernel(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        result = make(*args, **kwargs, dtype=out.dtype, device=out.device)
        if keeps_shape and result.numel() == out.numel():
            result = result.view(out.shape)
        return store(result, out=out)

    return kernel
