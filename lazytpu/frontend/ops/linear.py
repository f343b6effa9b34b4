"""Linear layers without gradients: torch's function calls the dispatcher for a transpose, a view, a product and a view
back. This one records the same product on the same views with one call.

The record is that of torch's function, so programs, errors and source lines are the same. Autograd and everything else
that looks at single ops get torch's function: dispatch modes, subclasses, transforms of torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from lazytpu.frontend.ops.direct import concerns_device_alone
from lazytpu.frontend.ops.views import KERNELS, Geometry
from lazytpu.frontend.recording.kernels import callable_of
from lazytpu.frontend.torch_private import composite, in_inference_mode, reinterpret
from lazytpu.trace.value import row_major

aten = torch.ops.aten


class Plan(NamedTuple):
    """The views of a linear layer: the input as a matrix, the weight transposed, and the size of the result. `input`
    and `size` are None where the input is a matrix itself."""

    input: Geometry | None
    weight: Geometry
    size: tuple[int, ...] | None


_LIMIT = 100_000  # plans, then the cache starts anew: a step has a few hundred
_plans: dict[Any, Plan | None] = {}
_view: Callable[..., torch.Tensor] = KERNELS["view"]
_torch_linear = composite(aten.linear.default)


def _plan(input: torch.Tensor, weight: torch.Tensor) -> Plan | None:
    """Return the views that `linear` in ATen/native/Linear.cpp, and `matmul`, make of a matrix or of a row-major input;
    None for other arguments."""
    shape = tuple(input.shape)
    if weight.dim() != 2 or len(shape) < 2 or 0 in shape or shape[-1] != weight.shape[1]:
        return None
    (out, width), (across, along) = weight.shape, weight.stride()
    transposed: Geometry = (width, out), (along, across), 0
    if len(shape) == 2:
        return Plan(None, transposed, None)
    if input.stride() != row_major(shape):
        return None
    return Plan(((input.numel() // width, width), (width, 1), 0), transposed, (*shape[:-1], out))


@cache
def _product(biased: bool) -> Callable[..., torch.Tensor]:
    return callable_of(aten.addmm.default if biased else aten.mm.default)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel of aten::linear."""
    if weight.requires_grad and torch.is_grad_enabled():
        return _torch_linear(input, weight, bias)
    # products resolve conjugates themselves
    if not concerns_device_alone(input, weight, bias) or (bias is not None and bias.dim() != 1):
        return _torch_linear(input, weight, bias)
    key = (input.shape, input.stride(), weight.shape, weight.stride())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _LIMIT:
            _plans.clear()
        plan = _plans[key] = _plan(input, weight)
    if plan is None:
        return _torch_linear(input, weight, bias)
    of_input, of_weight, size = plan
    rows = input if of_input is None else reinterpret(input, *of_input)
    columns = reinterpret(weight, *of_weight)
    product = _product(False)(rows, columns) if bias is None else _product(True)(bias, rows, columns)
    if size is None:
        return product
    # With a bias torch returns a view, which the dispatcher notes and autograd checks when it is written; without one,
    # and in inference mode, it does not.
    return _view(product, size) if bias is None or in_inference_mode() else product.view(size)


COMPOSITES: dict[str, Any] = {"linear": linear}
