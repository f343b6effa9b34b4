"""The cost model of loop rolling: the compile time that a loop saves, and the run time that it costs.

Compile time is proportional to the number of ops, and a loop has the ops of one iteration. A run takes longer: each
iteration has an overhead, rows are stacked and copied, and nothing is fused across iterations. So a program of moderate
size is left unchanged. A long one is rolled if that pays over the first `RUNS` runs together.

Measured: XLA:CPU compiles 5 ms an op, libtpu 20 to 100 (docs/background-compilation.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lazytpu.passes.graph import nbytes
from lazytpu.passes.loops.alignment import Alignment

RUNS = 1000
"""The number of runs over which a saving in compile time has to pay."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a platform: milliseconds to compile an op; microseconds of overhead of an iteration; bytes copied
    per second."""

    compile_ms: float
    trip_us: float
    bandwidth: float


RATES: Mapping[str, Rates] = {
    "cpu": Rates(compile_ms=5, trip_us=5, bandwidth=5e9),
    "gpu": Rates(compile_ms=5, trip_us=5, bandwidth=500e9),
    "tpu": Rates(compile_ms=20, trip_us=2, bandwidth=800e9),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """The savings and costs of a loop."""

    spared: int
    """Ops that need not be compiled."""
    stacked: int
    """Values of an iteration that are stacked before the loop."""
    saved_ms: float
    """The saved compile time."""
    cost_us: float
    """The added time of a run."""

    @property
    def pays(self) -> bool:
        return 1e3 * self.saved_ms > RUNS * self.cost_us

    def __str__(self) -> str:
        return f"compiles {self.saved_ms / 1e3:,.1f} s faster, adds {self.cost_us / 1e3:,.2f} ms to a run, as estimated"


def estimate(alignment: Alignment, ops: int, platform: str) -> Estimate:
    """Estimate a loop over iterations of `ops` ops each."""
    rates, trips = RATES[platform], alignment.trips
    spared = (trips - 1) * ops
    rows = alignment.rows()
    stacked = sum(nbytes(value) for values in rows for value in dict.fromkeys(values))
    written = 0
    for (position, result), iterations in alignment.used.items():
        if len(iterations) > 1:
            written += trips * nbytes(alignment.iterations[0][position].results[result])
    # A stack of values from outside is read, written, and read again; a stack of results is written and read.
    copied = 3 * stacked + 2 * written
    return Estimate(
        spared, len(rows), rates.compile_ms * spared, trips * rates.trip_us + 1e6 * copied / rates.bandwidth
    )
