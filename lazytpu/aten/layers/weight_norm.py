"""Weight normalization: w = v g / |v|, with norms over all dimensions but one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _total(b: Builder, x: SSAValue, dim: int) -> SSAValue:
    """The sum over every dimension but `dim`, keeping the rank."""
    rank = len(shape_of(x))
    return b.reduce("add", x, [d for d in range(rank) if d != dim % rank], True)


@rule("aten._weight_norm_interface.default")
def weight_norm(b: Builder, v: SSAValue, g: SSAValue, dim: int = 0) -> tuple[SSAValue, SSAValue]:
    """(w, norms): v (…, n at `dim`, …), g and norms (1, …, n, …, 1). For f16 and bf16, sums and norms are f32."""
    shape, compute = shape_of(v), wide(dtype_of(v))
    x = b.convert(v, compute)
    norms = b.sqrt(_total(b, b.mul(x, x), dim))
    w = b.mul(x, b.broadcast_to(b.div(b.convert(g, compute), norms), shape))
    return b.convert(w, dtype_of(v)), b.convert(norms, b.out[1][0])


@rule("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    b: Builder, grad_w: SSAValue, saved_v: SSAValue, saved_g: SSAValue, saved_norms: SSAValue, dim: int
) -> tuple[SSAValue, SSAValue]:
    """With s = sum of ∂w v over the norm's dimensions: ∂v = g / |v| (∂w - v s / |v|²), ∂g = s / |v|."""
    shape, compute = shape_of(saved_v), wide(dtype_of(saved_v))
    grad, v, g, norms = (b.convert(x, compute) for x in (grad_w, saved_v, saved_g, saved_norms))
    total = _total(b, b.mul(grad, v), dim)
    along = b.broadcast_to(b.div(total, b.mul(norms, norms)), shape)
    grad_v = b.mul(b.broadcast_to(b.div(g, norms), shape), b.sub(grad, b.mul(v, along)))
    return b.convert(grad_v, dtype_of(saved_v)), b.convert(b.div(total, norms), dtype_of(saved_g))
