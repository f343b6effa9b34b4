"""Linear layers in few calls: torch's function calls the dispatcher for a transpose, a view, a product and a view back,
and its gradients for as many. These kernels record the same products on the same views.

The records are those of torch's function, so programs, errors and source lines are the same. With gradients, autograd
keeps one node (`LinearBackward0`, as on devices with an own kernel), whose function computes the gradients of torch's
nodes in their order. Everything that looks at single ops gets torch's function: dispatch modes, hooks on saved tensors,
subclasses, transforms of torch.func, and gradients that are differentiated again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from lazytpu.frontend.ops.direct import concerns_device_alone
from lazytpu.frontend.ops.views import KERNELS, Geometry
from lazytpu.frontend.recording.kernels import callable_of
from lazytpu.frontend.recording.step_starts import NODE
from lazytpu.frontend.torch_private import (
    AS_ONE,
    composite,
    in_inference_mode,
    native,
    reinterpret,
    saved_tensor_hooks,
    without_modes,
)
from lazytpu.trace.value import row_major

aten = torch.ops.aten


class Plan(NamedTuple):
    """The views of a linear layer: the input as a matrix, the weight transposed, and the size of the result. `input`
    and `size` are None where the input is a matrix itself. `whole` says that one node may differentiate it."""

    input: Geometry | None
    weight: Geometry
    size: tuple[int, ...] | None
    whole: bool


class _Current(threading.local):
    """The plan of the layer that this thread passes to its node of autograd."""

    plan: Plan


_current = _Current()
_LIMIT = 100_000
_plans: dict[Any, Plan | None] = {}
_view: Callable[..., torch.Tensor] = KERNELS["view"]
_torch_linear = composite(aten.linear.default)
_linear_as_one: Callable[..., torch.Tensor] = partial(native(aten.linear.default), AS_ONE)


def _plan(input: torch.Tensor, weight: torch.Tensor) -> Plan | None:
    """Return the views that `linear` in ATen/native/Linear.cpp, and `matmul`, make of a matrix or of a row-major input;
    None for other arguments."""
    shape = tuple(input.shape)
    if weight.dim() != 2 or len(shape) < 2 or 0 in shape or shape[-1] != weight.shape[1]:
        return None
    (out, width), (across, along) = weight.shape, weight.stride()
    transposed: Geometry = (width, out), (along, across), 0
    row = input.stride() == row_major(shape)
    # The gradient of a row-major matrix is a product of this kind; of one element, it is one of transposed matrices.
    whole = row and input.numel() > 1 and out > 0 and weight.stride() == (width, 1) and input.is_floating_point()
    if len(shape) == 2:
        return Plan(None, transposed, None, whole)
    if not row:
        return None
    return Plan(((input.numel() // width, width), (width, 1), 0), transposed, (*shape[:-1], out), whole)


def _planned(input: torch.Tensor, weight: torch.Tensor) -> Plan | None:
    key = (input.shape, input.stride(), weight.shape, weight.stride())
    try:
        return _plans[key]
    except KeyError:
        if len(_plans) >= _LIMIT:
            _plans.clear()
        plan = _plans[key] = _plan(input, weight)
        return plan


@cache
def _product(biased: bool) -> Callable[..., torch.Tensor]:
    return callable_of(aten.addmm.default if biased else aten.mm.default)


def _multiplied(plan: Plan, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Record the product, a matrix."""
    rows = input if plan.input is None else reinterpret(input, *plan.input)
    columns = reinterpret(weight, *plan.weight)
    return _product(False)(rows, columns) if bias is None else _product(True)(bias, rows, columns)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel of aten::linear."""
    differentiated = torch.is_grad_enabled() and (
        weight.requires_grad or input.requires_grad or (bias is not None and bias.requires_grad)
    )
    # products resolve conjugates themselves
    if not concerns_device_alone(input, weight, bias, differentiated=True) or (bias is not None and bias.dim() != 1):
        return _torch_linear(input, weight, bias)
    plan = _planned(input, weight)
    if plan is None:
        return _torch_linear(input, weight, bias)
    size = plan.size
    if differentiated:
        if not plan.whole or saved_tensor_hooks(True) is not None or (bias is not None and len(bias) != len(weight)):
            return _torch_linear(input, weight, bias)
        NODE.computing, _current.plan = True, plan
        try:
            result = _linear_as_one(input, weight, bias)
        finally:
            NODE.computing = False
        return result if size is None or bias is None else result.view(size)
    product = _multiplied(plan, input, weight, bias)
    if size is None:
        return product
    # With a bias torch returns a view, which the dispatcher notes and autograd checks when it is written; without one,
    # and in inference mode, it does not.
    return _view(product, size) if bias is None or in_inference_mode() else product.view(size)


def _as_one(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute a linear layer that one node of autograd differentiates; a matrix if there is a bias, since torch returns
    a view then."""
    plan = _current.plan
    product = _multiplied(plan, input, weight, bias)
    return product if bias is not None or plan.size is None else _view(product, plan.size)


def linear_backward(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> list[torch.Tensor | None]:
    """The kernel of aten::linear_backward: the gradients as torch's nodes for a product and its views compute them."""
    plan = _planned(self, weight)
    if plan is None or not plan.whole or not concerns_device_alone(self, grad_output, weight):
        return _composed(self, grad_output, weight, output_mask)
    order = _order(self, grad_output, output_mask)
    out, width = weight.shape
    rows = self.numel() // width
    if not grad_output.is_contiguous():
        grad_output = grad_output.reshape(rows, out)
    elif grad_output.dim() != 2:
        grad_output = reinterpret(grad_output, (rows, out), (out, 1), 0)
    multiply = _product(False)
    gradients: list[torch.Tensor | None] = [None, None, None]
    for which in order:
        if which == 0:
            gradient = multiply(grad_output, weight)
            whole = plan.input is None
            gradients[0] = gradient if whole else reinterpret(gradient, tuple(self.shape), self.stride(), 0)
        elif which == 1:
            across, along = grad_output.stride()
            columns = reinterpret(grad_output, (out, rows), (along, across), 0)
            gradients[1] = multiply(columns, self if plan.input is None else reinterpret(self, *plan.input))
        else:
            gradients[2] = reinterpret(_sum()(grad_output, [0], True), (out,), (1,), 0)
    return gradients


def _order(self: torch.Tensor, grad: torch.Tensor, output_mask: list[bool]) -> list[int]:
    """Return the gradients that are needed, in torch's order: of (input, weight, bias), or of (weight, input)."""
    order = (0, 1, 2) if output_mask[2] or grad.dim() != self.dim() else (1, 0)
    return [which for which in order if output_mask[which]]


@cache
def _sum() -> Callable[..., torch.Tensor]:
    return callable_of(aten.sum.dim_IntList)


def _composed(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> list[torch.Tensor | None]:
    """Compute the gradients by the ops of torch's nodes, which the dispatcher and autograd see."""
    with without_modes():  # torch's forward pass has viewed these
        columns, matrix = weight.t(), self if self.dim() == 2 else self.reshape(-1, weight.shape[1])
    grad = grad_output if grad_output.dim() == 2 else grad_output.reshape(-1, weight.shape[0])
    order = _order(self, grad_output, output_mask)
    gradients: list[Any] = [None, None, None]
    for which in order:
        if which == 0:
            gradients[0] = grad.mm(columns.t())
        elif which == 1:
            gradients[1] = grad.t().mm(matrix).t()
        else:
            gradients[2] = grad.sum([0], True).view(weight.shape[0])
    for which in reversed(order):
        if which == 0 and self.dim() != 2:
            gradients[0] = gradients[0].view(self.shape)
        elif which == 1:
            gradients[1] = gradients[1].t()
    return gradients


COMPOSITES: dict[str, Any] = {"linear": linear, "linear_backward": linear_backward}
AS_ONES: dict[str, Any] = {"linear": _as_one}
