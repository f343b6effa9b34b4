"""The errors of torch's CPU kernels for arguments that a meta function refuses: the type and message that users
know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.torch_private import runs_on

# Above the first number of elements the CPU is called with tensors whose elements share one place in memory, and above
# the second not at all: if it accepts the arguments, it does compute.
LARGE, LARGEST = 1 << 20, 1 << 28


def ask_cpu(op: OpOverload, call: Callable[[dict[str, Any]], Any], bound: dict[str, Any], refusal: Exception) -> Any:
    """The results of the CPU for tensors of these dtypes, sizes and strides, if only the meta function refuses them.

    `call` calls the op with arguments by name. Raises the CPU's own error, or `refusal` when the CPU cannot be called:
    for ops without a meta function, or without a kernel for the CPU, and for large tensors.
    """
    count = elements(bound.values())
    unknown = isinstance(refusal, NotImplementedError) or not runs_on(op.name(), "CPU")
    if unknown or count > LARGEST or (count > LARGE and op._schema.is_mutable):
        raise refusal
    with torch.random.fork_rng(devices=[]):
        return call({name: on_cpu(value, count > LARGE) for name, value in bound.items()})


def elements(values: Any) -> int:
    """How many elements the tensors among `values` have, or have in memory where that is more."""
    count = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            count += max(value.numel(), value.untyped_storage().nbytes() // value.element_size())
        elif isinstance(value, list | tuple):
            count += elements(value)
    return count


def on_cpu(value: Any, one_place: bool = False) -> Any:
    """A CPU tensor like `value`: ones, which divide; zeros where they may be indices. `one_place`: in no memory."""
    if isinstance(value, torch.Tensor):
        strides = [0] * value.dim() if one_place else value.stride()
        tensor = torch.empty_strided(value.shape, strides, dtype=value.dtype, device="cpu")
        return tensor.fill_(1) if tensor.is_floating_point() or tensor.is_complex() else tensor.zero_()
    if isinstance(value, list | tuple):
        return [on_cpu(v, one_place) for v in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value
