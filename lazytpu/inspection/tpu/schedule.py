"""The schedule of a program on a model of the chip: one TensorCore in order, with transfers and collectives in
parallel.

The time of an op on the core is the maximum of its cycles, by the compiler's estimate, and of its bytes at HBM's
bandwidth. The compiler's estimate is good for products: simulations of the emitted code give 0.95 of it. For other ops
it is four to ten times too high; their time is bound by their bytes, if these are in HBM. Starting a transfer takes no
time on the core; where it is awaited, the core waits if it has not arrived.

All figures are estimates, none of them measured on a TPU. The difference between two programs is more reliable than the
values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lazytpu.inspection.tpu import collectives
from lazytpu.inspection.tpu.collectives import across_slices, seconds_across
from lazytpu.inspection.tpu.hlo import Computation, Hlo, Op
from lazytpu.inspection.tpu.kernels import Estimate
from lazytpu.inspection.tpu.links import links_of
from lazytpu.inspection.tpu.work import NOTHING, Work, is_free, work
from lazytpu.passes.generations import Generation
from lazytpu.runtime.tpu.topology import Topology

PRODUCTS = 0.95
"Factor on the compiler's estimate for products: simulated 7.4 to 160 us for 11 to 172 (v6e, 1,024 to 4,096 wide)."
OTHERS = 0.15
"Factor on its estimate for other ops: simulations give 0.06 to 0.28 of it (add, transpose, gelu, softmax)."
LEAST = 600
"Minimum cycles of an op other than a product. An assumption, which only matters for thousands of tiny ops."


@dataclass(slots=True)
class Cost:
    """An op of the schedule, with all its runs.

    - `kind`: "compute", "transfer" or "collective".
    - `seconds`: the core's time for it, including waiting; `waited` is the waiting alone.
    - `beside`: its time in parallel with the core.
    - `bound`: "matrix unit", "vector unit", "HBM", "links", "network", "latency", or "unknown" for a call of unknown
      duration, which has 0 seconds.
    """

    op: Op
    kind: str
    bound: str
    work: Work
    runs: int = 1
    seconds: float = 0.0
    waited: float = 0.0
    beside: float = 0.0
    payload: int = 0
    collective: str | None = None

    @property
    def flops(self) -> float:
        """Operations of the matrix unit, in all runs."""
        return self.work.flops * self.runs

    @property
    def hbm_bytes(self) -> float:
        """Bytes to and from HBM, in all runs."""
        return self.work.hbm_bytes * self.runs

    @property
    def unknown(self) -> bool:
        """Whether its duration is unknown."""
        return self.bound == "unknown"


@dataclass(frozen=True, slots=True)
class Span:
    """A span of the timeline: its lane ("core", "dma", "links", "network"), start and end in seconds, and op."""

    lane: str
    start: float
    end: float
    op: str


@dataclass
class Schedule:
    """The result of running the ops: total seconds, a cost for each op, and the timeline of the entry computation, in
    which a loop is one span. `unknown` are loops of unknown trip count, which are counted once."""

    seconds: float = 0.0
    costs: list[Cost] = field(default_factory=list[Cost])
    spans: list[Span] = field(default_factory=list[Span])
    unknown: list[str] = field(default_factory=list[str])


def schedule(hlo: Hlo, facts: Generation, devices: int = 1, topology: Topology | None = None) -> Schedule:
    """Run the entry computation of a program on the model of the chip. Collectives are among `devices` of `topology`;
    without it, they are timed as rings."""
    result = Schedule()
    result.seconds = _Run(_Chip(hlo, facts, devices, topology), result, hlo.entry, 1, top=True).run()
    return result


@dataclass(frozen=True, slots=True)
class _Chip:
    """The program, the chip's figures, the number of devices, and their arrangement, if it is known."""

    hlo: Hlo
    facts: Generation
    devices: int
    topology: Topology | None


class _Run:
    """One computation, run in order. Times are seconds from its start."""

    def __init__(self, chip: _Chip, schedule: Schedule, computation: Computation, runs: int, *, top: bool):
        self.hlo, self.facts = chip.hlo, chip.facts
        self.chip, self.schedule, self.computation, self.runs, self.top = chip, schedule, computation, runs, top
        self.now = 0.0
        self.free: dict[str, float] = {}  # lane other than the core -> the time when it is free
        self.pending: dict[str, tuple[str, float, Cost]] = {}  # name -> lane, start, cost
        self.ended: dict[str, tuple[float, Cost]] = {}  # name -> end, cost

    def run(self) -> float:
        for op in self.computation.ops:
            if is_free(op):
                continue
            chain = collectives.chain(self.hlo, op)
            if chain is not None:
                (self._start if chain[0] == "start" else self._await)(op, chain[1])
            elif op.opcode == "while":
                self._loop(op)
            elif op.opcode in ("call", "conditional"):
                self._branch(op)
            elif op.opcode.endswith("-start") or across_slices(op) is not None:
                self._start(op, op.name)
            elif op.opcode.endswith("-update"):
                self.pending[op.name] = self.pending[op.operands[0]]
            elif op.opcode.endswith("-done"):
                source = next((name for name in op.operands if name in self.pending or name in self.ended), None)
                if source is not None:
                    self._await(op, source)
            else:
                self._compute(op)
        return self.now

    # -- on the core

    def _compute(self, op: Op) -> None:
        cost, done = self._collective(op), work(self.hlo, self.computation, op)
        if cost is not None:
            cost.seconds = cost.waited = cost.beside
            self._span("links", self.now, self.now + cost.seconds / self.runs, op)
        else:
            seconds, bound = self._on_core(op, done)
            cost = Cost(op, "compute", bound, done, self.runs, seconds * self.runs)
        self._advance(cost.seconds / self.runs, op)
        self.schedule.costs.append(cost)

    def _on_core(self, op: Op, done: Work) -> tuple[float, str]:
        """Return the seconds of one run, and their bound."""
        kernel = Estimate.of(op)
        if kernel is not None:
            return max(kernel.seconds(done.hbm_bytes, self.facts), (LEAST / self.facts.clock, "latency"))
        if op.opcode == "custom-call" and op.cycles is None:
            return 0.0, "unknown"
        product = done.matrix or op.opcode == "custom-call"
        cycles = op.cycles or 0
        if op.simulated is None:
            cycles = cycles * PRODUCTS if product else max(cycles * OTHERS, LEAST)
        computing, moving = cycles / self.facts.clock, done.hbm_bytes / self.facts.device_hbm_bandwidth
        if moving >= computing:
            return moving, "HBM"
        if product:
            return computing, "matrix unit"
        return computing, "latency" if cycles == LEAST else "vector unit"

    def _advance(self, seconds: float, op: Op) -> None:
        self._span("core", self.now, self.now + seconds, op)
        self.now += seconds

    def _span(self, lane: str, start: float, end: float, op: Op) -> None:
        if self.top and end > start:
            self.schedule.spans.append(Span(lane, start, end, op.name))

    # -- in parallel with the core

    def _collective(self, op: Op) -> Cost | None:
        """Return the cost of a collective, in parallel with the core; None for other ops."""
        chip, facts, links = self.chip, self.facts, None
        carried = across_slices(op) or collectives.collective(self.hlo, self.computation, op, chip.devices)
        if carried is None:
            return None
        key = carried.kind, carried.payload, carried.members, facts
        if chip.topology is not None and carried.group is not None and len(carried.group) > 1:
            links = links_of(carried.group, chip.topology, facts)
        seconds = seconds_across(*key) if carried.across else collectives.seconds(*key, links)
        bound = "network" if carried.across else "links"
        return Cost(
            op, "collective", bound, NOTHING, self.runs,
            beside=seconds * self.runs, payload=carried.payload, collective=carried.kind,
        )  # fmt: skip

    def _start(self, op: Op, name: str) -> None:
        cost, lane = self._collective(op), _direction(op)
        if cost is None:
            cost, lane = Cost(op, "transfer", "HBM", NOTHING, self.runs), "dma"
        self.pending[name] = lane, self.now, cost
        self.schedule.costs.append(cost)

    def _await(self, op: Op, source: str) -> None:
        if source in self.pending:
            self._finish(source, op)
        ends, cost = self.ended[source]
        waited = max(0.0, ends - self.now)
        if waited:
            cost.seconds += waited * self.runs
            cost.waited += waited * self.runs
            self._advance(waited, op)
        self.ended[op.name] = ends, cost

    def _finish(self, source: str, op: Op) -> None:
        """Set the end of a transfer or collective: a lane serves one at a time, in the order in which they are
        awaited."""
        lane, started, cost = self.pending.pop(source)
        if cost.kind == "transfer":
            moved = sum(array.padded_bytes for array in op.results)
            cost.beside += moved / self.facts.device_hbm_bandwidth * self.runs
            cost.work = Work(0.0, moved, False)
        begins = max(started, self.free.get(lane, 0.0))
        ends = begins + cost.beside / self.runs
        self.free[lane] = ends
        self.ended[source] = ends, cost
        self._span("links" if lane.startswith("links") else lane, begins, ends, cost.op)

    # -- nested computations

    def _inner(self, name: str, runs: int) -> float:
        return _Run(self.chip, self.schedule, self.hlo.computations[name], runs, top=False).run()

    def _loop(self, op: Op) -> None:
        body, _ = op.called
        rounds = trip_count(self.hlo, op)
        if rounds is None:
            self.schedule.unknown.append(op.name)
            rounds = 1
        # A loop that never runs takes no time, but its ops are listed with the costs of one iteration.
        self._advance(self._inner(body, self.runs * max(rounds, 1)) * rounds, op)

    def _branch(self, op: Op) -> None:
        """Add a conditional, which takes as long as its longest branch; the ops of all branches are listed."""
        self._advance(max((self._inner(name, self.runs) for name in op.called), default=0.0), op)


def _direction(op: Op) -> str:
    """Return the lane of a collective: the network between slices, or the links. A permutation has one of two
    directions, determined by its first pair of chips."""
    if op.opcode == "recv":
        return "network"
    if not op.pairs:
        return "links"
    source, target = op.pairs[0]
    return "links+" if target in (source + 1, 0) else "links-"


def trip_count(hlo: Hlo, op: Op) -> int | None:
    """Return the trip count of a loop: its annotation, or the constant that its condition compares a counter with.

    In all loops from our lowering, the counter starts at 0 with steps of 1. Returns None without both, or if several
    comparisons can end the loop, as in iterations until convergence.
    """
    count = op.config.get("known_trip_count", {}).get("n")
    if count is not None:
        return int(count)
    _, condition = (hlo.computations[name] for name in op.called)
    ends = [inner for inner in condition.ops if inner.opcode in ("compare", "fusion")]
    if len(ends) == 1:
        for name in ends[0].operands:
            limit = condition.by_name[name].constant
            if limit is not None:
                return limit + (ends[0].raw.text(63) == "LE")
    return None
