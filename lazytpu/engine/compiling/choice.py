"""Choice of how a step without a program continues: the fastest strategy by estimates in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

Way = Literal["whole", "quick", "parts", "op by op"]

SAVED = 2.0
"""Seconds that another strategy must save compared with waiting for the whole program. The whole program must be
compiled in addition. Until it is ready, steps may be two to twenty times slower, and they share the cores with the
compiler."""
SAVED_RARELY = 0.5
"""The same for a step that occurs rarely and so may be slower, such as a last, smaller batch once per epoch."""
SHARE = 0.7
"""The largest share of the whole program's time that another strategy may take. Errors of two estimates differ by less
than that."""
FEW_NAPS, MOST_NAPS = 2, 100
"Least and greatest number of rare steps, such as once per epoch, that run a substitute before the whole is compiled."
SHORT = 1.0
"""Compile time of single ops, in seconds, that is always acceptable."""
TINY = 0.03
"""CPU seconds for the program of one small op: import, passes, emission, XLA."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The ops of a step that have no program yet, in memory or on disk: the number of different ones, and their `share`
    of its ops."""

    count: int
    share: float

    def seconds(self, whole: float, load: float) -> float:
        """Return the seconds to compile these ops one by one.

        Some are large, such as one op on each of a hundred tensors. Together they cost as much as the program, which
        takes `whole` seconds.
        """
        return TINY * load * self.count + (self.share * whole if self.share else 0.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds until a program is ready: the `whole` one, one with less optimisation (`quick`), or its `parts`. Infinite
    if impossible.

    A step takes `slower` seconds longer with the quick program. `made` says that only the quick one is ready.
    """

    whole: float
    quick: float = inf
    parts: float = inf
    slower: float = 0.0
    made: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen strategy, and the seconds until it is ready. For "op by op", `seconds` is the time of the whole
    program, which is compiled meanwhile."""

    way: Way
    seconds: float


def choose(costs: Costs, op_by_op: Callable[[], float], saved: float = SAVED) -> Choice:
    """Return the fastest strategy. Prefer the one that runs faster afterwards, unless another saves at least `saved`
    seconds.

    `op_by_op` returns the seconds to compile the ops one by one. It is called only if that can matter, since it
    examines each op.

    A quick program from an earlier process is used again, even if that process chose it on a busier machine: the second
    run of a script compiles nothing.
    """
    if costs.made:
        return Choice("quick", costs.quick)
    best = Choice("whole", costs.whole)
    if _shorter(costs.parts, best.seconds, saved):
        best = Choice("parts", costs.parts)
    if _shorter(costs.quick, best.seconds, saved):
        best = Choice("quick", costs.quick)
    if best.seconds > SAVED and _shorter(op_by_op(), best.seconds, SAVED):
        return Choice("op by op", costs.whole)
    return best


def _shorter(seconds: float, than: float, saved: float) -> bool:
    """Return whether `seconds` is enough less than `than`."""
    return seconds < SHARE * than and than - seconds > saved


def naps(costs: Costs, way: Way) -> int:
    """Return the number of rare steps that run with the substitute before the whole program is compiled.

    With a quick program, these steps lose as much time as the compilation takes. A short script avoids a useless
    compilation, and a long one loses at most twice the minimum.
    """
    if way != "quick" or not costs.slower:
        return FEW_NAPS
    return min(MOST_NAPS, max(FEW_NAPS, ceil(costs.whole / costs.slower) - 1))


def wait_on(waited: float, expected: float, op_by_op: float) -> float:
    """Return the seconds of waiting after which to continue op by op, once a step has `waited` as long as the user
    allows.

    Compiling hundreds of ops takes longer than the rest of the wait, and slows that down. So it starts only if it takes
    less than the time left of `expected`, or a fourth of the time waited.
    """
    if op_by_op <= max(SHORT, expected - waited):
        return waited
    return max(waited, 4 * op_by_op)
