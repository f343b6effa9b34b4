"""The builder methods that filling a region needs."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.building.indexing import IndexingMethods
from lazytpu.ir.building.pointwise import PointwiseMethods
from lazytpu.ir.building.shape import ShapeMethods


class RegionMethods(PointwiseMethods, ShapeMethods, IndexingMethods):
    def __init__(self, block: Block, before: Operation | None = None):
        super().__init__(block, before)
        self.checks: list[tuple[SSAValue, str, str]] = []
        "Registered value checks: (0-d i1 that must be true, message, name of the exception)."

    def nested(self, types: Sequence[Attribute]) -> RegionMethods:
        """The builder of a region whose block has arguments of these types, for an op that will be appended here."""
        raise NotImplementedError
