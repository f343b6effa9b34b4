"""Linear layers without gradients: torch's function calls the dispatcher for a transpose, a view, a product and a view
back. This one records the same product on the same views with one call.

The record is that of torch's function, so programs, errors and source lines are the same. A known record takes its step
in the trie without the views. Autograd and everything else that looks at single ops get torch's function: dispatch
modes, subclasses, transforms of torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from sys import intern
from typing import Any, NamedTuple
from weakref import ref

import torch

from lazytpu.frontend.ops.direct import concerns_device_alone
from lazytpu.frontend.ops.views import KERNELS, Geometry
from lazytpu.frontend.recording.kernels import callable_of
from lazytpu.frontend.recording.keys import ABSENT
from lazytpu.frontend.tensors import STASH, is_natural
from lazytpu.frontend.torch_private import composite, empty_tensor, in_inference_mode, reinterpret, thread_stash
from lazytpu.trace.value import Value, row_major

aten = torch.ops.aten


class Plan(NamedTuple):
    """The views of a linear layer: the input as a matrix, the weight transposed, and the size of the result. `input`
    and `size` are None where the input is a matrix itself.

    `rows` and `columns` are the size and stride of both matrices, and `shape` is the size of the result in any case.
    """

    input: Geometry | None
    weight: Geometry
    size: tuple[int, ...] | None
    rows: tuple[tuple[int, ...], tuple[int, ...]]
    columns: tuple[tuple[int, ...], tuple[int, ...]]
    shape: tuple[int, ...]


_LIMIT = 100_000  # plans, then the cache starts anew: a step has a few hundred
_plans: dict[Any, Plan | None] = {}
_view: Callable[..., torch.Tensor] = KERNELS["view"]
_torch_linear = composite(aten.linear.default)
_MM, _ADDMM = intern("aten.mm.default"), intern("aten.addmm.default")  # as in the keys of their kernels


def _plan(input: torch.Tensor, weight: torch.Tensor) -> Plan | None:
    """Return the views that `linear` in ATen/native/Linear.cpp, and `matmul`, make of a matrix or of a row-major input;
    None for other arguments, and for complex ones, which may have to be resolved first."""
    shape = tuple(input.shape)
    if input.is_complex() or weight.dim() != 2 or len(shape) < 2 or 0 in shape or shape[-1] != weight.shape[1]:
        return None
    (out, width), (across, along) = weight.shape, weight.stride()
    columns = (width, out), (along, across)
    if len(shape) == 2:
        return Plan(None, (*columns, 0), None, (shape, input.stride()), columns, (shape[0], out))
    if input.stride() != row_major(shape):
        return None
    rows, size = ((input.numel() // width, width), (width, 1)), (*shape[:-1], out)
    return Plan((*rows, 0), (*columns, 0), size, rows, columns, size)


@cache
def _product(biased: bool) -> Callable[..., torch.Tensor]:
    return callable_of(aten.addmm.default if biased else aten.mm.default)


def _known(plan: Plan, input: Any, weight: Any, bias: Any, whole: bool) -> torch.Tensor | None:
    """Record the product of a linear layer if the trie has an edge for it, and return it: as the result of the layer,
    or not `whole`, as a matrix. Otherwise return None, with the recorder unchanged.

    This is the kernel of `mm` or `addmm` on views that are not created. Any error is left to that kernel.
    """
    try:
        r = thread_stash(STASH)
    except RuntimeError:
        return None
    if r.eager:
        return None
    with r.lock:
        parent = r.state
        try:
            epoch, added = r.epoch, None
            if bias is not None:
                value = bias.untyped_storage()._value
                added = value.slot if value.epoch == epoch else r.admit(value)
                layout = value.layout
                if not is_natural(bias, layout):
                    added = (added, bias.shape, bias.stride(), bias.storage_offset(), bias.dtype)
            value = input.untyped_storage()._value
            rows = value.slot if value.epoch == epoch else r.admit(value)
            layout, offset, dtype = value.layout, input.storage_offset(), input.dtype
            shape, stride = plan.rows
            if offset or shape != layout.shape or stride != layout.stride or dtype is not layout.dtype:
                rows = (rows, shape, stride, offset, dtype)
            value = weight.untyped_storage()._value
            columns = value.slot if value.epoch == epoch else r.admit(value)
            layout, offset, dtype = value.layout, weight.storage_offset(), weight.dtype
            shape, stride = plan.columns
            if offset or shape != layout.shape or stride != layout.stride or dtype is not layout.dtype:
                columns = (columns, shape, stride, offset, dtype)
            key = (_MM, rows, columns) if bias is None else (_ADDMM, added, rows, columns, ABSENT, ABSENT)
            state = parent.expected
            if state.key != key:
                state = parent.next.get(key)
            if state is None or not state.outs.contiguous:
                r.rollback()
                return None
            r.state = parent.expected = state
            layout = state.outs
            value = Value(layout, epoch, r.slots, None, r)
            r.slots += 1
            r.values.append(ref(value))
        except BaseException as error:
            r.rollback()
            if r.state is parent and isinstance(error, Exception):
                return None
            raise
    result = empty_tensor(plan.shape if whole else layout.shape, layout.dtype)
    result.untyped_storage()._value = value
    return result


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel of aten::linear."""
    if weight.requires_grad and torch.is_grad_enabled():
        return _torch_linear(input, weight, bias)
    if not concerns_device_alone(input, weight, bias):
        return _torch_linear(input, weight, bias)
    if bias is not None and (bias.dim() != 1 or not bias.is_contiguous()):  # torch may add it to the product
        return _torch_linear(input, weight, bias)
    key = (input.shape, input.stride(), weight.shape, weight.stride(), input.dtype)
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _LIMIT:
            _plans.clear()
        plan = _plans[key] = _plan(input, weight)
    if plan is None:
        return _torch_linear(input, weight, bias)
    of_input, of_weight, size, *_ = plan
    # With a bias torch returns a view, which the dispatcher notes and autograd checks when it is written; without one,
    # and in inference mode, it does not.
    noted = None if bias is None or in_inference_mode() else size
    product = _known(plan, input, weight, bias, noted is None)
    if product is not None:
        return product if noted is None else product.view(noted)
    rows = input if of_input is None else reinterpret(input, *of_input)
    columns = reinterpret(weight, *of_weight)
    product = _product(False)(rows, columns) if bias is None else _product(True)(bias, rows, columns)
    if size is None:
        return product
    return _view(product, size) if noted is None else product.view(noted)


COMPOSITES: dict[str, Any] = {"linear": linear}
