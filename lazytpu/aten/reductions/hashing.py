"""hash_tensor: the exclusive or of elements' bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import reduced
from lazytpu.aten.registry import rule
from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@rule("aten.hash_tensor.default")
def hash_tensor(
    b: Builder, self: SSAValue, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0
) -> SSAValue:
    """Exclusive or (ui64) over `dim`, or all dims; `mode` is 0, the only one."""
    shape, result = shape_of(self), b.out[0][1]
    if prod(shape) == 0:
        return b.constant(0, "ui64", result)
    dims = sorted(reduced(dim, len(shape))) if shape else []
    remaining = [n for d, n in enumerate(shape) if d not in dims]
    return b.reshape(b.template("hash_tensor", [self], [("ui64", remaining)], dims=tuple(dims))[0], result)
