"""Ops that are refused with padding, since other devices take part in them."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import collectives
from lazytpu.ir.base import TensorOp
from lazytpu.ir.dialect import OPS
from lazytpu.passes.padding.dims import Refused
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Rule, Walk


def collective(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Refuse a collective."""
    raise Refused("a collective over a sized dimension: other devices may have another size")


RULES: dict[type[TensorOp], Rule] = {
    kind: collective for kind in OPS.values() if issubclass(kind, collectives.CollectiveOp)
}
