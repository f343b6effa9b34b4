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

from lazytpu.frontend.ops.views import KERNELS, PLAIN, Geometry
from lazytpu.frontend.recording.kernels import callable_of
from lazytpu.frontend.torch_private import composite, dispatch_modes, is_transformed, reinterpret
from lazytpu.trace.value import row_major

aten = torch.ops.aten


class Plan(NamedTuple):
    """The views of a linear layer: the input as a matrix, the weight transposed, and the size of the result. `input`
    and `size` are None where the input is a matrix itself."""

    input: Geometry | None
    weight: Geometry
    size: tuple[int, ...] | None


_LIMIT = 100_000
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


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether no dispatch key but the device's and autograd's concerns the tensor (products resolve conjugates
    themselves): it has a value of its own, and is not negated lazily."""
    try:
        value = tensor.untyped_storage()._value  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, RuntimeError):  # the second from wrappers, which have no storage
        return False
    return value is not None and type(tensor) in PLAIN and not tensor.is_neg()


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel of aten::linear."""
    if torch.is_grad_enabled() and (
        input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _torch_linear(input, weight, bias)
    plain = _is_plain(input) and _is_plain(weight) and (bias is None or (_is_plain(bias) and bias.dim() == 1))
    if not plain or dispatch_modes() or is_transformed():
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
    return product if size is None else _view(product, size)


COMPOSITES: dict[str, Any] = {"linear": linear}
