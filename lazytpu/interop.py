"""Tensors and JAX arrays in the same memory, and functions of one called from the other, gradients included.

docs/custom-kernels.md shows how. Importing this module does not import JAX.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax
    import torch

__all__ = ["call_jax", "from_jax", "jax_view", "to_jax", "torch_function", "torch_view"]


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A JAX array with the values of a "tpu" tensor, on the device that programs run on.

    The array has the tensor's memory, which no program takes while the array lives; a view that is not all of its
    memory in order is copied, on the device. Later changes of the tensor do not show in the array. If JAX is told to
    donate the array, the tensor loses its value. Waits for what computes the tensor.

    Raises RuntimeError for a tensor that requires a gradient or is elsewhere, and what failed on the device.
    """
    from lazytpu.kernels import exchange

    return exchange.to_jax(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """A "tpu" tensor with the values of a JAX array, of any shape and of every dtype that tensors have.

    An array on the device that programs run on keeps its memory, which no program takes; one elsewhere is copied.
    Raises TypeError for an array that is traced, and RuntimeError for one that was donated.
    """
    from lazytpu.kernels import exchange

    return exchange.from_jax(array)


def call_jax(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function on "tpu" tensors: `lazytpu.pallas.custom_jax_kernel(function)(*args, **kwargs)`.

    It is recorded as one op, with JAX's gradients. The function is traced once for the shapes and dtypes of its
    operands as long as it is the same object, so define it once, not in the call.
    """
    return _kernel(function)(*args, **kwargs)


@lru_cache(maxsize=256)
def _kernel(function: Any) -> Any:
    from lazytpu.pallas import custom_jax_kernel

    return custom_jax_kernel(function)


def torch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function as a function of JAX arrays, for use inside and outside of jax.jit, grad and vmap.

    `function` takes "tpu" tensors where it is given arrays, and returns them, or trees of them. It must be pure: no
    reads of values, no writes into arguments, no random numbers. Tensors that it captures are constants of the program
    that JAX makes. Raises RuntimeError and TypeError at the call for a function that is not.
    """
    from lazytpu.kernels.torch_functions import TorchFunction

    return TorchFunction(function)


def jax_view(value: Any) -> Any:
    """`to_jax` of a tensor, `torch_function` of a function, and both of what a tree of them holds."""
    import jax
    import torch

    def view(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return to_jax(leaf)
        return torch_function(leaf) if callable(leaf) else leaf

    return jax.tree.map(view, value)


def torch_view(value: Any) -> Any:
    """`from_jax` of an array, `custom_jax_kernel` of a function, and both of what a tree of them holds."""
    import jax

    def view(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return from_jax(leaf)
        return _kernel(leaf) if callable(leaf) else leaf

    return jax.tree.map(view, value)
