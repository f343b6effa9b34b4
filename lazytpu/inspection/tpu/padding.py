"""Padding waste: arrays whose minor dimensions do not fill whole tiles take more memory, and are read and computed at
their padded size."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.hlo import Hlo, ProgramLine
from lazytpu.inspection.tpu.work import FREE


@dataclass(frozen=True, slots=True)
class Padded:
    """A padded array: the result of an op, or the argument named `argument`."""

    op: str
    array: Array
    line: ProgramLine | None
    argument: str | None = None

    @property
    def wasted(self) -> int:
        """Bytes of padding."""
        return self.array.padded_bytes - self.array.bytes

    @property
    def share(self) -> float:
        """The fraction of its memory that is padding."""
        return self.wasted / max(self.array.padded_bytes, 1)


def padded(hlo: Hlo) -> list[Padded]:
    """Return the padded arguments and op results, most waste first. Scalars, which are always padded, are left out."""
    ops = [
        op
        for op in hlo.entry.ops
        if (op.opcode not in FREE or op.opcode == "parameter") and not op.opcode.endswith(("-start", "-update"))
    ]
    entries = [
        Padded(op.name, array, hlo.line(op), hlo.named(op) if op.opcode == "parameter" else None)
        for op in ops
        for array in op.results
        if array.elements > 1
    ]
    return sorted((entry for entry in entries if entry.wasted), key=lambda entry: -entry.wasted)
