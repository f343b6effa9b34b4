"""Memory: a program's peak, its position in the schedule, and the temporaries alive there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lazytpu.inspection.tpu.hlo import Computation, Hlo, ProgramLine
from lazytpu.runtime.xla.analysis import Memory

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*)$")
_VALUE = re.compile(r"^ value: <\d+ ([\w.\-]+)(?:\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (\S+)")
# Ops whose result is, or contains, their operand.
_PASS_THROUGH = frozenset(
    "bitcast get-tuple-element tuple optimization-barrier opt-barrier while call conditional".split()
)


@dataclass(frozen=True, slots=True)
class Temporary:
    """A value in the program's own memory, alive from the op that produces it to its last use (`first` to `last`, as
    positions in the schedule)."""

    op: str
    type: str
    bytes: int
    offset: int
    first: int
    last: int
    line: ProgramLine | None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of HBM on one device, whose total is `capacity`.

    `temporaries` are the values alive at the peak, largest first, as far as the compiler names them. `over_time` lists
    (position in the schedule, bytes of temporaries in use) at each change.
    """

    total: Memory
    capacity: int
    temporaries: tuple[Temporary, ...]
    over_time: tuple[tuple[int, int], ...]

    @property
    def fits(self) -> bool:
        """Whether the program alone fits into the device's memory."""
        return self.total.peak + self.total.code <= self.capacity


def memory_use(hlo: Hlo, total: Memory, buffers: str, capacity: int) -> MemoryUse:
    """Return the memory that a program uses; `buffers` is the compiler's list of allocations."""
    values = temporaries(hlo, buffers)
    changes: dict[int, int] = {}
    for value in values:
        changes[value.first] = changes.get(value.first, 0) + value.bytes
        changes[value.last + 1] = changes.get(value.last + 1, 0) - value.bytes
    over_time: list[tuple[int, int]] = []
    used = worst = at = 0
    for place in sorted(changes):
        used += changes[place]
        over_time.append((place, used))
        if used > worst:
            worst, at = used, place
    alive = sorted((value for value in values if value.first <= at <= value.last), key=lambda value: -value.bytes)
    return MemoryUse(total, capacity, tuple(alive), tuple(over_time))


def temporaries(hlo: Hlo, buffers: str) -> list[Temporary]:
    """Return the values in allocations of HBM that are neither arguments, results nor constants. Raises ValueError if
    the list cannot be parsed."""
    callers = _callers(hlo)
    homes = {op.name: computation for computation in hlo.computations.values() for op in computation.ops}
    places = {op.name: place for place, op in enumerate(hlo.entry.ops)}
    results: list[Temporary] = []
    counted = False
    for text in buffers.splitlines():
        allocation = _ALLOCATION.match(text)
        if allocation:
            counted = "temp" in allocation[2] and "color" not in allocation[2]
            continue
        value = _VALUE.match(text)
        if value is None and text not in ("", "BufferAssignment:"):
            raise ValueError(f"cannot parse a line of the compiler's list of allocations: {text[:200]}")
        if value is None or not counted:
            continue
        if value[1] not in homes:
            raise ValueError(f"the compiler's list of allocations has {value[1]}, which is not in its module")
        computation = homes[value[1]]
        if computation is hlo.entry:
            first, last = places[value[1]], _last_use(computation, value[1], places)
        # A value inside a loop, for example, is alive while the loop runs; an asynchronous one until it is awaited.
        else:
            outer = _outermost(computation.name, callers, hlo.entry.name)
            if outer is None:
                continue
            first = last = places[outer]
            if hlo.entry.by_name[outer].opcode.endswith("-start"):
                last = max(places[user.name] for user, _ in hlo.entry.users[outer])
        line = hlo.line(computation.by_name[value[1]])
        results.append(Temporary(value[1], value[4], int(value[2]), int(value[3]), first, last, line))
    return results


def _callers(hlo: Hlo) -> dict[str, tuple[str, str]]:
    """Map the name of a computation to the names of the computation and the op that call it."""
    return {
        name: (computation.name, op.name)
        for computation in hlo.computations.values()
        for op in computation.ops
        for name in op.called
    }


def _outermost(name: str, callers: dict[str, tuple[str, str]], entry: str) -> str | None:
    """Return the op of the entry computation that a computation runs in; None if nothing calls it."""
    op = None
    while name != entry:
        if name not in callers:
            return None
        name, op = callers[name]
    return op


def _last_use(computation: Computation, name: str, places: dict[str, int]) -> int:
    last, pending, seen = places[name], [name], {name}
    while pending:
        for user, _ in computation.users.get(pending.pop(), ()):
            last = max(last, places[user.name])
            passed_through = user.opcode in _PASS_THROUGH or user.opcode.endswith(("-start", "-update"))
            if passed_through and user.name not in seen:
                seen.add(user.name)
                pending.append(user.name)
    return last
