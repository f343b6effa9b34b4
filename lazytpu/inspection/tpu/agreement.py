"""Consistency checks of a report: compare the figures read from the compiler's output with the figures of its input.

An incomplete report is worse than none. So any inconsistency is an error, which states both figures.
"""

from __future__ import annotations

from lazytpu.inspection.tpu.hlo import Computation, Hlo
from lazytpu.inspection.tpu.kernels import Estimate
from lazytpu.inspection.tpu.module import Module
from lazytpu.inspection.tpu.schedule import Schedule
from lazytpu.inspection.tpu.work import matrix_flops

LEAST = 0.5
"""The part of a StableHLO module's products, as `products` counts them, that a compiler must leave. In 12 steps of
models it left all of them."""


class InconsistentError(RuntimeError):
    """The figures of a cost report are inconsistent. The report would be wrong, so none is returned."""

    def __init__(self, name: str, what: str):
        super().__init__(
            f"the cost report of {name} does not add up: {what}. This is a bug in lazytpu, or a compiler newer than "
            "it knows; do not trust any figure of this program"
        )


def agree(hlo: Hlo, module: Module, schedule: Schedule, devices: int, name: str) -> None:
    """Raise InconsistentError if the schedule lacks products of the HLO module, or the HLO module lacks most products
    of the StableHLO."""
    read, planned = once(hlo, hlo.entry), sum(cost.work.flops for cost in schedule.costs)
    if abs(read - planned) > 1e-6 * max(read, planned):
        raise InconsistentError(
            name, f"the module has {read / 1e9:,.3f} GFLOP, loops counted once, but its schedule {planned / 1e9:,.3f}"
        )
    least = module.least_flops / max(devices, 1)
    if read < LEAST * least:
        raise InconsistentError(
            name,
            f"at least {least / 1e9:,.3f} GFLOP per device went into the compiler, but its output has "
            f"{read / 1e9:,.3f}",
        )


def once(hlo: Hlo, computation: Computation) -> float:
    """Return the operations of all products in a computation and in the computations that it calls. The body of a loop
    counts once, and kernels by their own estimate."""
    total = 0.0
    for op in computation.ops:
        kernel = Estimate.of(op)
        total += matrix_flops(computation, op) if kernel is None else kernel.flops
        total += sum(once(hlo, hlo.computations[called]) for called in op.called)
    return total
