"""Fake tensors of the device, with the strides that the device produces: a view that is valid in one layout may be
invalid in another, and graphs are traced with these tensors.

torch's meta functions differ from its kernels in a few strides (`lazytpu.frontend.inference`). Here the shape inference
of recording applies. Symbolic sizes are left to torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import OVERRIDES, infer
from lazytpu.frontend.inference.strides import is_iterated
from lazytpu.frontend.torch_private import FakeTensor, pytree
from lazytpu.trace.value import Layout


def _differs(op: OpOverload) -> bool:
    """Return whether torch's fake result may have other strides than the device's, or may not exist."""
    return str(op) in OVERRIDES or is_iterated(op)


def fake_results(mode: Any, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the fake results of an op on the device; NotImplemented if torch's own are right."""
    if op._schema.is_mutable or not _differs(op):
        return NotImplemented
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not tensors or any(t.device.type != "tpu" or not _is_static(t) for t in tensors):
        return NotImplemented
    if is_iterated(op) and all(t.is_contiguous() for t in tensors):
        return NotImplemented
    activation.activate()
    names = [a.name for a in op._schema.arguments]
    bound = {**dict(zip(names, args, strict=False)), **kwargs}

    def of(layout: Any) -> Any:
        if isinstance(layout, tuple):
            return [of(item) for item in layout]
        if not isinstance(layout, Layout):
            return layout
        empty = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")
        return FakeTensor(mode, empty, tensors[0].device)

    try:
        results = tuple(map(of, infer(op, bound)))
    except Exception:  # noqa: BLE001 (torch's function raises it again)
        return NotImplemented
    return results[0] if len(results) == 1 else results


def _is_static(tensor: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*tensor.shape, *tensor.stride()))
