"""What torch's CPU kernels say to arguments that a meta function refuses: the error the user knows, type and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Above so many elements the CPU is not asked: should it accept the arguments, it would really compute.
LARGEST = 1 << 20


def ask_cpu(call: Callable[[dict[str, Any]], Any], bound: dict[str, Any], refusal: Exception) -> Any:
    """The results that the CPU gives for tensors of these dtypes, sizes and strides, if only the meta function refuses.

    `call` calls the op by its arguments' names. Raises the CPU's own error, or `refusal` when the CPU cannot be asked:
    ops without a meta function, and large tensors.
    """
    if isinstance(refusal, NotImplementedError) or elements(bound.values()) > LARGEST:
        raise refusal
    with torch.random.fork_rng(devices=[]):
        return call({name: on_cpu(value) for name, value in bound.items()})


def elements(values: Any) -> int:
    """How many elements the tensors among `values` have in memory."""
    count = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            count += value.untyped_storage().nbytes() // value.element_size()
        elif isinstance(value, list | tuple):
            count += elements(value)
    return count


def on_cpu(value: Any) -> Any:
    """A CPU tensor like `value`: ones, which divide; zeros where they may be indices."""
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return made.fill_(1) if made.is_floating_point() or made.is_complex() else made.zero_()
    if isinstance(value, list | tuple):
        return [on_cpu(v) for v in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value
