"""The report of one program, combined from the compiler's output and the model of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lazytpu.inspection.chains import longest_chain
from lazytpu.inspection.modules import ModuleTime, module_times
from lazytpu.inspection.tpu import padding
from lazytpu.inspection.tpu.agreement import agree
from lazytpu.inspection.tpu.collectives import collective
from lazytpu.inspection.tpu.hlo import KERNEL, Hlo, Op, ProgramLine, read_hlo
from lazytpu.inspection.tpu.memory import MemoryUse, memory_use
from lazytpu.inspection.tpu.module import Module, read_module
from lazytpu.inspection.tpu.schedule import Cost, Schedule, schedule
from lazytpu.passes.generations import GENERATIONS, Generation
from lazytpu.runtime.tpu.tpu_compiler import TpuProgram


@dataclass(frozen=True)
class ProgramReport:
    """The cost of one program on one device of a topology.

    All times are estimates by `schedule`, in seconds per run; all bytes and ops come from the TPU compiler.

    - `notes`: decisions of passes that are based on estimates, such as rolled loops.
    - `records`: the number of ops that the host records for it. `host_seconds`: CPU seconds of this machine to record
      it and to run the step's Python, measured in the rehearsal. Both are 0 if unknown.
    """

    name: str
    program: TpuProgram
    hlo: Hlo
    module: Module
    schedule: Schedule
    memory: MemoryUse
    padded: Sequence[padding.Padded]
    notes: tuple[str, ...] = ()
    records: int = 0
    host_seconds: float = 0.0
    _lines: dict[str, list[ProgramLine]] = field(default_factory=dict[str, list[ProgramLine]])

    @property
    def facts(self) -> Generation:
        """The chip's figures."""
        return GENERATIONS[self.program.topology.generation]

    @property
    def devices(self) -> int:
        """The number of devices on which the program runs."""
        return self.program.devices

    @property
    def seconds(self) -> float:
        """Seconds of one run. It excludes `unknown` calls, and is a lower bound if there are any."""
        return self.schedule.seconds

    @property
    def complete(self) -> bool:
        """Whether `seconds` covers the whole run, so that shares and ratios of it are meaningful."""
        return not self.unknown and not self.schedule.unknown

    @cached_property
    def costs(self) -> list[Cost]:
        """The ops, most expensive first."""
        return sorted(self.schedule.costs, key=lambda cost: -cost.seconds)

    @cached_property
    def by_line(self) -> dict[ProgramLine | None, list[Cost]]:
        """The ops by their line, most expensive line first; None for ops that the compiler added."""
        costs_of: dict[ProgramLine | None, list[Cost]] = {}
        for cost in self.costs:
            costs_of.setdefault(self.line(cost.op), []).append(cost)
        return dict(sorted(costs_of.items(), key=lambda item: -sum(cost.seconds for cost in item[1])))

    @cached_property
    def modules(self) -> list[ModuleTime]:
        """The modules with the times of the ops that they recorded, in the order of their tree."""
        lines = [(self.line(cost.op), cost.seconds) for cost in self.costs]
        return module_times((line.module, line.backward, seconds) for line, seconds in lines if line is not None)

    @cached_property
    def kernels(self) -> list[Cost]:
        """Kernels written in Pallas, timed by their own cost estimates."""
        return [cost for cost in self.costs if cost.op.target == KERNEL and not cost.unknown]

    @cached_property
    def unknown(self) -> list[Cost]:
        """Calls of unknown duration, such as kernels without a cost estimate."""
        return [cost for cost in self.costs if cost.unknown]

    @cached_property
    def flops(self) -> float:
        """Operations of the matrix unit as the program states them; kernels count by their own estimate. float32
        products take several times as many."""
        return sum(cost.flops for cost in self.costs)

    @cached_property
    def hbm_bytes(self) -> float:
        """Bytes moved to and from HBM."""
        return sum(cost.hbm_bytes for cost in self.costs)

    @property
    def utilisation(self) -> float:
        """The fraction of the matrix unit's peak used over the whole run."""
        return self.flops / (self.seconds * self.facts.device_flops) if self.seconds else 0.0

    @property
    def bandwidth_share(self) -> float:
        """The fraction of HBM's bandwidth used over the whole run."""
        return self.hbm_bytes / (self.seconds * self.facts.device_hbm_bandwidth) if self.seconds else 0.0

    @property
    def roofline(self) -> tuple[float, float]:
        """(seconds of the operations at peak rate, seconds of the bytes at full bandwidth)."""
        return self.flops / self.facts.device_flops, self.hbm_bytes / self.facts.device_hbm_bandwidth

    @cached_property
    def collectives(self) -> list[Cost]:
        """The collectives, longest wait first."""
        return sorted((cost for cost in self.costs if cost.collective), key=lambda cost: -cost.waited)

    @cached_property
    def path(self) -> list[tuple[Op, float]]:
        """The longest chain of dependent ops with their seconds, waiting included: no order of them takes less."""
        ops, seconds = self.hlo.entry.ops, dict[str, float]()
        for span in self.schedule.spans:
            seconds[span.op] = max(span.end - span.start, seconds.get(span.op, 0.0))
        number = {op.name: at for at, op in enumerate(ops)}
        times = [seconds.get(op.name, 0.0) for op in ops]
        chain = longest_chain(times, [[number[name] for name in op.operands] for op in ops])
        return [(ops[at], times[at]) for at in chain if times[at]]

    @property
    def exposed(self) -> float:
        """Seconds in which the core waits for other chips."""
        return sum(cost.waited for cost in self.collectives)

    def line(self, op: Op) -> ProgramLine | None:
        """Return the main line of an op: the line of the product in it, else its own, else the first one inside it."""
        return next(iter(self.lines(op)), None)

    def lines(self, op: Op) -> list[ProgramLine]:
        """Return all lines that an op computes parts of, its main line first."""
        if op.name not in self._lines:
            inside = self.hlo.inside(op)
            products = [inner for inner in inside if inner.opcode in ("convolution", "dot", "custom-call")]
            candidates = [self.hlo.line(inner) for inner in (*products, *inside)]
            if not any(candidates):
                candidates = self._lines_of_collective(op)
            self._lines[op.name] = list(dict.fromkeys(line for line in candidates if line is not None))
        return self._lines[op.name]

    def _lines_of_collective(self, op: Op) -> list[ProgramLine | None]:
        """Return the lines of the StableHLO's collectives of the same kind and size."""
        carried = collective(self.hlo, self.hlo.entry, op, self.devices)
        if carried is None:
            return []
        key = carried.kind, carried.payload
        return [exchange.line for exchange in self.module.exchanges if (exchange.kind, exchange.bytes) == key]


def examine(compiled: TpuProgram, stablehlo: str | bytes, *, name: str) -> ProgramReport:
    """Return the report of a program from its StableHLO and the compiler's output. Raises InconsistentError if the two
    disagree."""
    hlo, facts = read_hlo(compiled.proto), GENERATIONS[compiled.topology.generation]
    module, planned = read_module(stablehlo), schedule(hlo, facts, compiled.devices, compiled.topology)
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
