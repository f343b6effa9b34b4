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
    entries: list[Padded] = []
    for op in hlo.entry.ops:
        if (op.opcode in FREE and op.opcode != "parameter") or op.opcode.endswith(("-start", "-update")):
            continue
        for array in op.results:
            entry = Padded(op.name, array, hlo.line(op), hlo.named(op) if op.opcode == "parameter" else None)
            if array.elements > 1 and entry.wasted:
                entries.append(entry)
    return sorted(entries, key=lambda entry: -entry.wasted)
