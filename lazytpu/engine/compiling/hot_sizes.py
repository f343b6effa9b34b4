"""Exact programs for frequent sizes, compiled while steps run the bucket's program.

A size gets its exact program once padding and masks have cost as much time as its compilation takes. So the total cost
is at most twice the optimum, however often the size still occurs.
"""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.engine.sizes.templates import Sized

RECORD = 5e-3
"""CPU seconds of XLA:CPU to compile one record as part of a step."""
MASKS = 0.05
"""Share of a run spent on masks if a size equals its bound and nothing is padded: 2 to 9 % (benchmarks/sizes.py)."""
OFTEN = 8
"""Runs before which no size is frequent: the first ones take long, as do some on a busy machine."""


@dataclass(slots=True)
class Heat:
    """The time that traces ending at one state lost by their bucket's program.

    Padding takes the share `waste` of a run. `lost` counts the milliseconds lost in `runs` runs, and `worth` is the
    cost of an exact program. When `lost` reaches `worth`, a `job` compiles that program, for the live slots and dead
    inputs `wanted`. With `over` no other job is started.
    """

    sized: Sized
    worth: float
    waste: float
    runs: int = 0
    lost: float = 0.0
    wanted: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    job: Job | None = None
    over: bool = False

    def ran(self, program: AtSizes) -> bool:
        """Count a run of the bucket's program, and return whether an exact program now pays."""
        self.runs += 1
        self.lost += program.timing.last_ms * max(MASKS, self.waste)
        return self.runs >= OFTEN and self.lost >= self.worth

    @property
    def text(self) -> str:
        """The sizes and their number of runs, for `lazytpu.explain()`."""
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sized.sizes.items())
        return f"{sizes} came {self.runs:,} times, by the program for many sizes"
