"""Moves of a module to the device or back keep its Parameter objects.

`module.to("cuda")` gives each Parameter new data. Between "cpu" and a device in Python torch cannot do that, and
silently creates new Parameters: tied weights are separated, and an optimizer created before the move updates the old
ones. So when a parameter crosses to or from the device, its contents are swapped with the moved contents, and the
object stays. Modules that do not cross take torch's own path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lazytpu.frontend.torch_private import has_tensors_inside, swap_tensor_impl

_apply = nn.Module._apply


def apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Replace nn.Module._apply, which implements to(), tpu(), cpu(), float() and to_empty()."""
    names = {id(p): name for name, p in self._parameters.items() if p is not None}

    def moved(tensor: Tensor) -> Tensor:
        result = fn(tensor)
        name = names.get(id(tensor))
        if name is None or (tensor.device.type == "tpu") == (result.device.type == "tpu"):
            return result
        if has_tensors_inside(result) or torch.__future__.get_swap_module_params_on_conversion():
            return result  # torch's own method swaps contents, also the inner tensors of a DTensor
        _let_go(self)
        _become(tensor, result, fn, f"{type(self).__name__}.{name}")
        return tensor

    if recurse:
        for child in self.children():
            child._apply(fn)
    return _apply(self, moved, recurse=False)


def _let_go(module: nn.Module) -> None:
    """Detach a weight that a hook of torch.nn.utils computed from its graph.

    The graph refers to the parameters that are about to move, and the next forward computes the weight again.
    """
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            computed = module.__dict__.get(hook.name)
            if computed is not None and computed.grad_fn is not None:
                setattr(module, hook.name, computed.detach())


def _become(parameter: Tensor, moved: Tensor, fn: Callable[[Tensor], Tensor], name: str) -> None:
    """Give the Parameter object the contents of `moved`; its gradient moves too, and its hooks stay."""
    grad, parameter.grad = parameter.grad, None
    _check_unused(parameter, name)
    contents = nn.Parameter(moved, requires_grad=parameter.requires_grad)
    hooks: Any = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    swap_tensor_impl(parameter, contents)
    # Hooks are part of the contents; setting them again adds them to the new ones.
    if hooks[0]:
        parameter._backward_hooks = hooks[0]
    if hooks[1]:
        parameter._post_accumulate_grad_hooks = hooks[1]
    if grad is not None:
        with torch.no_grad():
            swap_tensor_impl(grad, fn(grad).requires_grad_(grad.requires_grad))
        parameter.grad = grad


def _check_unused(parameter: Tensor, name: str) -> None:
    """Raise RuntimeError, or make the backward pass raise it, if a live graph would continue with the old contents.

    Raises at once when references to the contents other than the parameter's own place in a graph exist.
    """
    holder: Any = parameter
    count = holder._use_count()
    if count == 2 and parameter.is_leaf and parameter.requires_grad:
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        if holder._use_count() == 2:  # the edge existed before, so a graph refers to the parameter

            def refuse(grads: Any) -> None:
                raise RuntimeError(
                    f"{name} was moved to another device after the forward of this backward; move the module first"
                )

            node.register_prehook(refuse)
            return
    if count > 1:
        raise RuntimeError(
            f"cannot move {name}: {count - 1} other references to its contents exist, such as an autograd graph that "
            "saved it. Move the module before its first forward, or delete the outputs and losses of earlier ones."
        )


def install() -> None:
    """Let nn.Module keep its parameters when they cross to or from the device."""
    module: Any = nn.Module
    module._apply = apply
