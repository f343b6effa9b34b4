"""Sliding windows of reductions and convolutions along a dimension: the number of window positions."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.ir.forms import Form, form
from lazytpu.passes.padding.dims import Dim, Refused, contiguous, sized
from lazytpu.passes.padding.walk import Walk


@dataclass(frozen=True)
class Window:
    """A window along one dimension. Its size may vary, as in a gradient."""

    size: Form
    stride: int
    low: int
    high: Form
    base_dilation: int
    dilation: int

    @property
    def trivial(self) -> bool:
        """Whether each element is a window by itself."""
        return self == Window(form(1), 1, 0, form(0), 1, self.dilation)


def windowed(w: Walk, dim: Dim, window: Window, memory: int, size: int) -> Dim:
    """Return the dimension of `size` positions of a window along `dim`. `memory` is the window's size at the bound.

    The caller masks the padding of both. Raise Refused for a merged dimension, or for a dilated dimension that may be
    empty.
    """
    if not dim.padded and window.size == form(memory) and window.high.number is not None:
        return sized(size)
    contiguous(dim)
    base = dim.total
    if window.base_dilation > 1:
        if base.range(w.shared.symbols)[0] < 1:
            raise Refused(f"a dimension of {base} elements, which may be none, is dilated")
        base = (base - 1) * window.base_dilation + 1
    span = (window.size - 1) * window.dilation + 1
    return w.dim(size, (base + window.low + window.high - span) // window.stride + 1)
