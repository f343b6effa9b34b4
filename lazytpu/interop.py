"""Shares memory between tensors and JAX arrays, and calls functions of one library from the other, with gradients.

docs/custom-kernels.md has examples. Importing this module does not import JAX.
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
    """Return a JAX array with the values of a "tpu" tensor, on the device that runs programs.

    The array shares the tensor's memory, which no program donates while the array lives. A view that is not its whole
    memory in order is copied, on the device. Later changes of the tensor do not show in the array. If JAX donates the
    array, the tensor loses its value. The call waits for the programs that compute the tensor.

    Raises RuntimeError for a tensor that requires a gradient or is on another device, and the errors of the programs
    that compute it.
    """
    from lazytpu.kernels import exchange

    return exchange.to_jax(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """Return a "tpu" tensor with the values of a JAX array, of any shape, and of every dtype that tensors have.

    An array on the device that runs programs shares its memory, which no program donates; an array on another device is
    copied. Raises TypeError for a tracer, and RuntimeError for a donated array.
    """
    from lazytpu.kernels import exchange

    return exchange.from_jax(array)


def call_jax(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function on "tpu" tensors: `lazytpu.pallas.custom_jax_kernel(function)(*args, **kwargs)`.

    The call is recorded as one op, with JAX's gradients. The function is traced once for each set of shapes and dtypes,
    as long as it is the same object: define it once, outside the calling code.
    """
    return _kernel(function)(*args, **kwargs)


@lru_cache(maxsize=256)
def _kernel(function: Any) -> Any:
    from lazytpu.pallas import custom_jax_kernel

    return custom_jax_kernel(function)


def torch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch function as a function of JAX arrays, for use inside and outside of jax.jit, grad and vmap.

    `function` receives "tpu" tensors in place of arrays, and returns tensors or trees of tensors. It must be pure: no
    reads of values, no writes into arguments, no random numbers. Tensors that it captures are constants of JAX's
    program. The call raises RuntimeError or TypeError for other functions.
    """
    from lazytpu.kernels.torch_functions import TorchFunction

    return TorchFunction(function)


def jax_view(value: Any) -> Any:
    """Apply `to_jax` to tensors and `torch_function` to functions, also inside trees of them; other leaves stay."""
    import jax
    import torch

    def view(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return to_jax(leaf)
        return torch_function(leaf) if callable(leaf) else leaf

    return jax.tree.map(view, value)


def torch_view(value: Any) -> Any:
    """Apply `from_jax` to arrays and `custom_jax_kernel` to functions, also inside trees of them; other leaves stay."""
    import jax

    def view(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return from_jax(leaf)
        return _kernel(leaf) if callable(leaf) else leaf

    return jax.tree.map(view, value)
