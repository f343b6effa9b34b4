"""Whether the figures of a report fit together: what was read of the compiler's module, and what went into it.

A report that leaves something out is worse than none. So what does not add up is an error, with both figures.
"""

from __future__ import annotations

from lazytpu.inspection.tpu.hlo import Computation, Hlo
from lazytpu.inspection.tpu.kernels import Estimate
from lazytpu.inspection.tpu.module import Module
from lazytpu.inspection.tpu.schedule import Schedule
from lazytpu.inspection.tpu.work import matrix_flops

LEAST = 0.5
"""The part of the products of a StableHLO module that a compiler's rewriting may leave, beside what `products` does not
count: in 12 steps of models all of it was left."""


class InconsistentError(RuntimeError):
    """Figures of a cost report that do not fit together. The report would be wrong, so there is none."""

    def __init__(self, name: str, what: str):
        super().__init__(
            f"the cost report of {name} does not add up: {what}. This is a fault of lazytpu, or a compiler newer "
            "than it knows; no figure of this program is to be believed"
        )


def agree(hlo: Hlo, module: Module, schedule: Schedule, devices: int, name: str) -> None:
    """Raises InconsistentError for a schedule without a product of its module, or a module without most of the products
    that were compiled."""
    read, planned = once(hlo, hlo.entry), sum(cost.work.flops for cost in schedule.costs)
    if abs(read - planned) > 1e-6 * max(read, planned):
        raise InconsistentError(
            name, f"the module has {read / 1e9:,.3f} GFLOP, a loop counted once, and its schedule {planned / 1e9:,.3f}"
        )
    given = module.least_flops / max(devices, 1)
    if read < LEAST * given:
        raise InconsistentError(
            name,
            f"at least {given / 1e9:,.3f} GFLOP for each device went into the compiler, and {read / 1e9:,.3f} were "
            "read in what it made",
        )


def once(hlo: Hlo, computation: Computation) -> float:
    """Operations of all products in a computation and in those that it runs, the body of a loop once; kernels by their
    own estimate."""
    total = 0.0
    for op in computation.ops:
        kernel = Estimate.of(op)
        total += matrix_flops(computation, op) if kernel is None else kernel.flops
        total += sum(once(hlo, hlo.computations[called]) for called in op.called)
    return total
