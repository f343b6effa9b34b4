"""The errors of torch's CPU kernels for arguments that a meta function rejects: users know their types and messages."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.torch_private import call_with_warnings, runs_on

# Above LARGE elements, the CPU is called with tensors whose elements share one memory location. Above LARGEST it is not
# called: if it accepts the arguments, it computes.
LARGE, LARGEST = 1 << 20, 1 << 28


def ask_cpu(op: OpOverload, call: Callable[[dict[str, Any]], Any], bound: dict[str, Any], refusal: Exception) -> Any:
    """Run the CPU's kernel on tensors of these dtypes, sizes and strides. Returns its results if only the meta function
    rejects the arguments.

    `call` calls the op with arguments by name. Raises the CPU's own error, or `refusal` when the CPU cannot be called:
    for ops without a meta function or a CPU kernel, and for large tensors.
    """
    count = elements(bound.values())
    unknown = isinstance(refusal, NotImplementedError) or not runs_on(op.name(), "CPU")
    if unknown or count > LARGEST or (count > LARGE and op._schema.is_mutable):
        raise refusal
    with torch.random.fork_rng(devices=[]):
        return call({name: on_cpu(value, count > LARGE) for name, value in bound.items()})


def call_quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function`, which asks the CPU's kernel for an error, without its warnings and random numbers.

    The op that is checked warns itself. A torch function keeps the C++ warnings of all calls inside it until it
    returns, where `warnings.catch_warnings` no longer applies; so this call emits its own before.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call_with_warnings(function, (), args, kwargs)


def elements(values: Any) -> int:
    """Return the number of elements of the tensors in `values`; for each tensor, of its storage if that is larger."""
    count = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            count += max(value.numel(), value.untyped_storage().nbytes() // value.element_size())
        elif isinstance(value, list | tuple):
            count += elements(value)
    return count


def on_cpu(value: Any, one_place: bool = False) -> Any:
    """Return a CPU tensor like `value`: ones for floats, which may be divisors; zeros for integers, which may be
    indices.

    With `one_place`, all elements share one memory location.
    """
    if isinstance(value, torch.Tensor):
        strides = [0] * value.dim() if one_place else value.stride()
        tensor = torch.empty_strided(value.shape, strides, dtype=value.dtype, device="cpu")
        return tensor.fill_(1) if tensor.is_floating_point() or tensor.is_complex() else tensor.zero_()
    if isinstance(value, list | tuple):
        return [on_cpu(v, one_place) for v in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value
