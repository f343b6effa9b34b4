"""Templates: JAX functions that the passes cannot look into. Those that work element by element bear any padding."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import template
from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import shape_of
from lazytpu.passes.padding.dims import Refused, merged_all
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Rule, Walk

ELEMENTWISE = frozenset(
    ("airy_ai", "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_j0", "bessel_j1", "bessel_k", "bessel_y0", "bessel_y1")
    + ("chebyshev_polynomial", "erfcx", "gcd", "hermite_polynomial", "igamma", "igammac", "laguerre_polynomial")
    + ("legendre_polynomial", "log_ndtr", "ndtri", "spherical_bessel_j0")
)
"Templates whose result has at each place what their operands have there."


def in_template(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Padding gets 1: a series or recurrence over all elements ends with the last of them."""
    assert isinstance(op, template.TemplateOp)
    shape = shape_of(op.results[0])
    if op.template_name.data not in ELEMENTWISE or any(shape_of(x) != shape for x in op.operands):
        raise Refused(f"the template {op.template_name.data!r} reads all elements, padding included")
    dims = merged_all([w.dims(x) for x in op.operands])
    for index in range(len(op.operands)):
        w.mask_operand(op, index, range(len(shape)), 1, dims)
    return [Padded(dims)]


RULES: dict[type[TensorOp], Rule] = {template.TemplateOp: in_template}
