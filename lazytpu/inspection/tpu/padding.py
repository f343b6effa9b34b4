"""Tiling waste: arrays whose minor dimensions do not fill whole tiles take more memory, and are read and computed on
at that size."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.hlo import Hlo, Line
from lazytpu.inspection.tpu.work import FREE


@dataclass(frozen=True, slots=True)
class Padded:
    """The result of one op, or an `argument` of that name: its elements, and those it has with padding."""

    op: str
    array: Array
    line: Line | None
    argument: str | None = None

    @property
    def wasted(self) -> int:
        """Bytes that hold no element."""
        return self.array.padded_bytes - self.array.bytes

    @property
    def share(self) -> float:
        """The part of its memory that holds no element."""
        return self.wasted / max(self.array.padded_bytes, 1)


def padded(hlo: Hlo) -> list[Padded]:
    """Arguments and results of the ops that run, those that waste most first. Scalars, which are padded by nature, are
    left out."""
    found: list[Padded] = []
    for op in hlo.entry.ops:
        if (op.opcode in FREE and op.opcode != "parameter") or op.opcode.endswith(("-start", "-update")):
            continue
        for array in op.results:
            each = Padded(op.name, array, hlo.line(op), hlo.named(op) if op.opcode == "parameter" else None)
            if array.elements > 1 and each.wasted:
                found.append(each)
    return sorted(found, key=lambda each: -each.wasted)
