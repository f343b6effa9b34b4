"""A size that comes often gets its exact program, behind the steps that run the one of its bucket meanwhile.

It does when padding and masks have cost these as much time as the program takes to compile: both together then cost at
most twice what the better of the two would have, however often the size still comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.engine.sizes.templates import Sized

RECORD = 5e-3
"CPU seconds of XLA:CPU for the program of a record, as part of a step."
MASKS = 0.05
"The part of a run that masks take where a size is its bound and nothing is padded: 2 to 9 % (benchmarks/sizes.py)."
OFTEN = 8
"Runs before which no size is hot: the first ones take long, and so do some on a busy machine."


@dataclass(slots=True)
class Heat:
    """What the traces that end at one state have lost by programs of their bucket, of which padding takes the part
    `waste`: the milliseconds `lost` in so many `runs`. When that is what their own program is `worth`, a `job` compiles
    the one that is `wanted`, of those live slots and dead inputs. `over`: no other is begun."""

    sized: Sized
    worth: float
    waste: float
    runs: int = 0
    lost: float = 0.0
    wanted: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    job: Job | None = None
    over: bool = False

    def ran(self, program: AtSizes) -> bool:
        """Count a run of a program of the bucket; whether their own is worth its compilation now."""
        self.runs += 1
        self.lost += program.timing.last_ms * max(MASKS, self.waste)
        return self.runs >= OFTEN and self.lost >= self.worth

    @property
    def text(self) -> str:
        """What came how often, for `lazytpu.explain()`."""
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sized.sizes.items())
        return f"{sizes} came {self.runs:,} times, by the program for many sizes"
