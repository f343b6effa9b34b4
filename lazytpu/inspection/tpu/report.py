"""The report of a program: everything that was found out about it, as one object, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lazytpu.inspection.tpu import padding
from lazytpu.inspection.tpu.agreement import agree
from lazytpu.inspection.tpu.collectives import collective
from lazytpu.inspection.tpu.hlo import KERNEL, Hlo, Line, Op, read_hlo
from lazytpu.inspection.tpu.memory import MemoryUse, memory_use
from lazytpu.inspection.tpu.module import Module, read_module
from lazytpu.inspection.tpu.schedule import Cost, Schedule, schedule
from lazytpu.passes.generations import GENERATIONS, Generation
from lazytpu.runtime.tpu_compiler import TpuProgram

SCHEMA = 2
"Of `as_dict`; docs/tpu-report.md describes it."


@dataclass(frozen=True)
class ProgramReport:
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

    @cached_property
    def advice(self) -> list[Any]:
        """What would be faster or smaller, the largest gain first: `lazytpu.inspection.tpu.advice.Advice`."""
        from lazytpu.inspection.tpu.advice import advise  # here: it reads reports

        return advise(self)

    def as_dict(self) -> dict[str, Any]:
        """JSON: docs/tpu-report.md says what each field is."""
        from lazytpu.inspection.tpu.export import program

        return program(self)


@dataclass(frozen=True)
class TpuReport:
    """What a step costs on a TPU: a report for each of its programs, in their order."""

    topology: str
    programs: tuple[ProgramReport, ...]

    @property
    def seconds(self) -> float:
        """One step, without the host's part."""
        return sum(each.seconds for each in self.programs)

    @property
    def complete(self) -> bool:
        """Whether `seconds` has all of a step in it."""
        return all(each.complete for each in self.programs)

    @property
    def advice(self) -> list[Any]:
        """Of all programs, the largest gain first."""
        return sorted((each for program in self.programs for each in program.advice), key=lambda a: -(a.seconds or 0.0))

    def as_dict(self) -> dict[str, Any]:
        """JSON: docs/tpu-report.md says what each field is."""
        made = [each.as_dict() for each in self.programs]
        whole = {"seconds": self.seconds, "complete": self.complete}
        return {"schema": SCHEMA, "topology": self.topology, **whole, "programs": made}

    def __str__(self) -> str:
        from lazytpu.inspection.tpu.render import as_text

        return as_text(self)

    def __repr__(self) -> str:
        count = f"{len(self.programs)} program{'s' if len(self.programs) != 1 else ''}"
        least = "" if self.complete else "at least "
        return f"<TpuReport for {self.topology}: {least}{1e6 * self.seconds:,.0f} us estimated, {count}>"

    def __rich__(self) -> Any:
        from lazytpu.inspection.tpu.render import rendered

        return rendered(self)


def examine(compiled: TpuProgram, stablehlo: str | bytes, *, name: str) -> ProgramReport:
    """The report of a program, from what the compiler made of its StableHLO. Raises InconsistentError when the figures
    of the two do not fit together."""
    hlo, facts = read_hlo(compiled.proto), GENERATIONS[compiled.topology.generation]
    module, planned = read_module(stablehlo), schedule(hlo, facts, compiled.devices)
    agree(hlo, module, planned, compiled.devices, name)
    return ProgramReport(
        name=name,
        program=compiled,
        hlo=hlo,
        module=module,
        schedule=planned,
        memory=memory_use(hlo, compiled.memory, compiled.buffers, facts.device_hbm_bytes),
        padded=padding.padded(hlo),
    )
