"""Memory: a program's peak, its position in the schedule, and the temporaries alive there."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from lazytpu.inspection.tpu.hlo import Computation, Hlo, ProgramLine
from lazytpu.runtime.xla.analysis import Memory

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*)$")
_VALUE = re.compile(r"^ value: <\d+ ([\w.\-]+)(?:\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=\d+\): (\S+)")
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
    changes: Counter[int] = Counter()
    for value in values:
        changes[value.first] += value.bytes
        changes[value.last + 1] -= value.bytes
    places = sorted(changes)
    over_time = list(zip(places, accumulate(changes[place] for place in places), strict=True))
    at, _ = max(over_time, key=lambda point: point[1], default=(0, 0))
    alive = sorted((value for value in values if value.first <= at <= value.last), key=lambda value: -value.bytes)
    return MemoryUse(total, capacity, tuple(alive), tuple(over_time))


def temporaries(hlo: Hlo, buffers: str) -> list[Temporary]:
    """Return the values in allocations of HBM that are neither arguments, results nor constants. Raises ValueError if
    the list cannot be parsed."""
    # The op of the entry computation in which each op runs; ops that nothing calls run in none.
    owners = {inner.name: (op, inner) for op in hlo.entry.ops for inner in hlo.inside(op)}
    names = {op.name for computation in hlo.computations.values() for op in computation.ops}
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
        if value[1] not in names:
            raise ValueError(f"the compiler's list of allocations has {value[1]}, which is not in its module")
        if value[1] not in owners:
            continue
        owner, op = owners[value[1]]
        first = last = places[owner.name]
        if op is owner:
            last = _last_use(hlo.entry, op.name, places)
        # A value inside a loop, for example, is alive while the loop runs; an asynchronous one until it is awaited.
        elif owner.opcode.endswith("-start"):
            last = max(places[user.name] for user, _ in hlo.entry.users[owner.name])
        line = hlo.line(op)
        results.append(Temporary(value[1], value[3], int(value[2]), first, last, line))
    return results


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
