"""How a step goes on that has no program yet: which way to its end is the shortest, by estimates of seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

Way = Literal["whole", "quick", "parts", "op by op"]

SAVED = 2.0
"""Seconds that another way must be shorter than waiting for the whole program. What it compiles comes on top of that,
its steps may be two to twenty times slower, and they share the cores with the compiler until the whole is there."""
SAVED_RARELY = 0.5
"The same for a step that comes rarely, as that of a last, smaller batch, once an epoch: it may be slower."
SHARE = 0.7
"And the part of the time that it may take: estimates of two programs differ from what they take by less than this."
FEW_NAPS, MOST_NAPS = 2, 100
"Steps that come rarely, as once an epoch, and go on with another program: the fewest and the most."
SHORT = 1.0
"Seconds of compiling ops one by one that are never too many."
TINY = 0.03
"CPU seconds until the program of one small op is there: import, passes, emission, XLA."


@dataclass(frozen=True, slots=True)
class Unknown:
    """The ops of a step that have no program yet, in memory or on disk: how many different ones, and how large a
    `share` of its ops that is."""

    count: int
    share: float

    def seconds(self, whole: float, load: float) -> float:
        """What compiling them one by one takes. Some are large, as one op on each of a hundred tensors; together they
        are the program that takes `whole` seconds."""
        return TINY * load * self.count + (self.share * whole if self.share else 0.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds until a program is there: the `whole` one, the same with less optimisation (`quick`), its `parts`.
    Infinite for what there cannot be. A step takes `slower` seconds longer with the quick one. With `made`, that is
    there already, and the whole is not."""

    whole: float
    quick: float = inf
    parts: float = inf
    slower: float = 0.0
    made: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The way to go on, and in how many seconds it should be open. `seconds` of "op by op" is what the whole program
    takes, which is compiled meanwhile."""

    way: Way
    seconds: float


def choose(costs: Costs, op_by_op: Callable[[], float], saved: float = SAVED) -> Choice:
    """The shortest way. Of two that are about as long, the one that runs faster afterwards: another way has to save
    `saved` seconds. `op_by_op` says what running the ops one by one would take; it is asked only where that could
    matter, as it looks at each op.

    A quick program that an earlier process made is the way that the step went there, by the estimate of a busier
    machine perhaps. It goes that way again: a second run of a script compiles nothing."""
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
    return seconds < SHARE * than and than - seconds > saved


def naps(costs: Costs, way: Way) -> int:
    """How many steps that come rarely go on the way they went before the whole program is compiled. With a quick one,
    as many as lose the time that this takes: a short script would compile it in vain, and a long one loses at most
    twice what it has to."""
    if way != "quick" or not costs.slower:
        return FEW_NAPS
    return min(MOST_NAPS, max(FEW_NAPS, ceil(costs.whole / costs.slower) - 1))


def wait_on(waited: float, expected: float, op_by_op: float) -> float:
    """Until how many seconds of waiting to go on with it, when a step has `waited` as long as the user's setting says
    for what was `expected` to take so long. Compiling hundreds of ops one by one takes longer than the rest of the
    wait, and makes that longer; so it is begun when it takes less than what is left, or a fourth of what has passed."""
    if op_by_op <= max(SHORT, expected - waited):
        return waited
    return max(waited, 4 * op_by_op)
