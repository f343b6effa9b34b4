"""The window of a convolution, in a form that XLA's algebraic simplifier does not mistake for a group dimension.

Where the kernel is larger than the input, the simplifier swaps the two (`SwapConvolutionOperandsIfBeneficial`). It
exempts *group dimensions*, the spatial form of a grouped convolution: a kernel of k elements, not dilated and not
reversed, over an input that is dilated by k, with a stride of k - 1 and no padding. In a grouped convolution the input
has k elements, too, and its window does not change. The simplifier does not check that (jaxlib 0.10.2). For an input of
another size it builds a convolution whose window does not match its kernel, fails a check, and ends the process:
`Window dimensions do not match RHS shape`. The input gradient of a convolution of two elements with stride 2 and
padding 1 has such a window, and so may a transposed convolution.

One more element of padding at the end avoids the mistake. It adds at most one position, which is sliced off. So all
values are unchanged, and so are the kernels that XLA picks.

The simplifier also turns interior padding of the input into a dilation. So the lowering of `pad` puts an op that it
does not look through behind interior padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ConvWindow(NamedTuple):
    """The movement of the kernel, with one number for each spatial dimension."""

    strides: Sequence[int]
    low: Sequence[int]
    high: Sequence[int]
    lhs_dilation: Sequence[int]
    rhs_dilation: Sequence[int]


def without_groups(window: ConvWindow, size: Sequence[int], kernel: Sequence[int]) -> ConvWindow:
    """Return the window with one more element of padding at the end of each dimension that XLA would mistake for a
    group, or `window` itself. The kernel is reversed in no dimension."""
    dims = zip(*window, size, kernel, strict=True)
    extra = [
        k == lhs_dilation == stride + 1 and not low and not high and rhs_dilation == 1 and n != k
        for stride, low, high, lhs_dilation, rhs_dilation, n, k in dims
    ]
    if not any(extra):
        return window
    return window._replace(high=[high + element for high, element in zip(window.high, extra, strict=True)])
