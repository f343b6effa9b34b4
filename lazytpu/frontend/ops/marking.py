"""`lazytpu.mark_dynamic`: declare that a dimension of a tensor will have other sizes."""

from __future__ import annotations

import torch

from lazytpu.frontend import activation, tensors
from lazytpu.frontend.recording.marks import ranges_of
from lazytpu.frontend.storage.copies import materialize
from lazytpu.frontend.torch_private import mark_dynamic
from lazytpu.options import options
from lazytpu.trace.value import EMPTY


def mark(tensor: torch.Tensor, dim: int, least: int | None, most: int | None) -> None:
    """Implement `lazytpu.mark_dynamic`."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_dynamic takes a tensor; got a {type(tensor).__name__}")
    rank = tensor.dim()
    if not -rank <= dim < rank:
        raise IndexError(f"mark_dynamic got dim {dim} of a tensor of shape {list(tensor.shape)}")
    dim %= rank
    size = tensor.shape[dim]
    if (least is not None and not 0 <= least <= size) or (most is not None and most < size):
        raise ValueError(f"mark_dynamic got min={least} and max={most} for a dim of size {size}, which is outside")
    mark_dynamic(tensor, dim, least, most)


def pad(tensor: torch.Tensor) -> None:
    """Pad the memory of a marked device tensor.

    Tensors that torch only traces have no memory, and views are not padded; torch marks the tensors inside a wrapper
    subclass one by one.
    """
    if options.buckets == "off" or not tensors.is_plain(tensor):
        return
    value = tensors.value_of(tensor)
    if value.buffer is not EMPTY and tensors.is_natural(tensor, value.layout):
        materialize(value)
        value.buffer = activation.engine().mark(value.buffer, value.layout, ranges_of(tensor))
