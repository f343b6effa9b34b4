"""The figures of a program: everything that the compiler and its model say about it, as one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lazytpu.inspection.tpu import padding
from lazytpu.inspection.tpu.collectives import collective
from lazytpu.inspection.tpu.hlo import KERNEL, Hlo, Line, Op
from lazytpu.inspection.tpu.memory import MemoryUse
from lazytpu.inspection.tpu.module import Module
from lazytpu.inspection.tpu.schedule import Cost, Schedule
from lazytpu.passes.generations import GENERATIONS, Generation
from lazytpu.runtime.tpu_compiler import TpuProgram


@dataclass(frozen=True)
class ProgramFigures:
    """What one program costs on one device of a topology.

    Every time is an estimate by `schedule`, in seconds of one run; every byte and every op is what the TPU compiler
    says itself.
    """

    name: str
    program: TpuProgram
    hlo: Hlo
    module: Module
    schedule: Schedule
    memory: MemoryUse
    padded: Sequence[padding.Padded]

    @property
    def facts(self) -> Generation:
        """Figures of the chip."""
        return GENERATIONS[self.program.topology.generation]

    @property
    def devices(self) -> int:
        """On how many devices the program runs at once."""
        return self.program.devices

    @property
    def seconds(self) -> float:
        """One run. Where something is `unknown`, it is not in it: it takes at least so long."""
        return self.schedule.seconds

    @property
    def complete(self) -> bool:
        """Whether `seconds` has all of a run in it: shares of it, and ratios to another's, say something."""
        return not self.unknown and not self.schedule.unknown

    @cached_property
    def costs(self) -> list[Cost]:
        """The ops, the dearest first."""
        return sorted(self.schedule.costs, key=lambda cost: -cost.seconds)

    @cached_property
    def by_line(self) -> dict[Line | None, list[Cost]]:
        """The ops by the line they are about, the dearest line first; None for what the compiler added."""
        found: dict[Line | None, list[Cost]] = {}
        for cost in self.costs:
            found.setdefault(self.line(cost.op), []).append(cost)
        return dict(sorted(found.items(), key=lambda item: -sum(cost.seconds for cost in item[1])))

    @cached_property
    def kernels(self) -> list[Cost]:
        """Kernels written with Pallas, timed by their own cost estimates."""
        return [cost for cost in self.costs if cost.op.target == KERNEL and not cost.unknown]

    @cached_property
    def unknown(self) -> list[Cost]:
        """Calls, of kernels without a cost estimate for one, of which nobody says how long they take."""
        return [cost for cost in self.costs if cost.unknown]

    @cached_property
    def flops(self) -> float:
        """Operations of the matrix unit, as the program writes them, kernels' by their own estimate; float32 products
        take several times as many."""
        return sum(cost.flops for cost in self.costs)

    @cached_property
    def hbm_bytes(self) -> float:
        """Bytes between the device and its memory."""
        return sum(cost.hbm_bytes for cost in self.costs)

    @property
    def utilisation(self) -> float:
        """The part of the matrix unit's peak that is used over the whole run."""
        return self.flops / (self.seconds * self.facts.device_flops) if self.seconds else 0.0

    @property
    def roofline(self) -> tuple[float, float]:
        """Seconds that the operations would take at peak, and the bytes at full bandwidth."""
        return self.flops / self.facts.device_flops, self.hbm_bytes / self.facts.device_hbm_bandwidth

    @cached_property
    def collectives(self) -> list[Cost]:
        """The collectives, the one that is waited for longest first."""
        return sorted((cost for cost in self.costs if cost.collective), key=lambda cost: -cost.waited)

    @property
    def exposed(self) -> float:
        """Seconds that the core waits for other chips."""
        return sum(cost.waited for cost in self.collectives)

    def line(self, op: Op) -> Line | None:
        """The line that an op is about: of the product in it, else its own, else the first inside of it."""
        return next(iter(self.lines(op)), None)

    def lines(self, op: Op) -> list[Line]:
        """All lines that an op computes something of, the one that it is about first."""
        if op.name not in self._lines:
            inside = self.hlo.inside(op)
            products = [each for each in inside if each.opcode in ("convolution", "dot", "custom-call")]
            found = [self.hlo.line(each) for each in (*products, *inside)]
            if not any(found):
                found = self._lines_of_collective(op)
            self._lines[op.name] = list(dict.fromkeys(line for line in found if line is not None))
        return self._lines[op.name]

    def _lines_of_collective(self, op: Op) -> list[Line | None]:
        """By kind and size, those of the program that was compiled."""
        found = collective(self.hlo, self.hlo.entry, op, self.devices)
        if found is None:
            return []
        wanted = found.kind, found.payload
        return [each.line for each in self.module.exchanges if (each.kind, each.bytes) == wanted]

    @cached_property
    def _lines(self) -> dict[str, list[Line]]:
        return {}
