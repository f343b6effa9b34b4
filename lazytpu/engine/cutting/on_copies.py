"""Launch of a step's program on copies of those donated inputs that are still in use.

`clone()` shares the value. So after the best weights were saved, or an average of them was started, the next step must
preserve the old weights once. A program without that donation takes as long to compile as the step's; a copy only costs
a read and a write of the input. If this goes on, the step gets its own program.
"""

from __future__ import annotations

from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.copies import copies_of

LEAST = 16
"""Number of records from which on a program takes longer to compile than a program that copies."""
BYTES = 1 << 30
"""Bytes copied for one trace until it gets a program: a second of copying on a slow machine, about the time of a
compilation."""


def on_copies(cut: Cut) -> tuple[Compiled, dict[int, Buffer]] | None:
    """Return a program that computes at least the live slots but donates inputs in use, with copies of these by index.

    Return None if a compatible program exists, or if there is no such program. Also return None for a short trace, and
    after `BYTES` were copied for the trace. The copies are made before the launch, so an interrupt leaves the step
    pending.
    """
    plan, trace = cut.plan, cut.trace
    if plan.copied >= BYTES or trace.state.depth < LEAST or trace.mode not in ("fused", "lazy"):
        return None
    if fitting(plan, cut.live, cut.dead) is not None:
        return None
    needed, free = frozenset(cut.live), frozenset(cut.dead)
    programs: list[Compiled] = [*plan.programs.values(), *(j.meanwhile for j in list(plan.jobs) if j.meanwhile)]
    candidates = [(c, c.binding.donated - free) for c in programs if needed.issubset(c.binding.live)]
    costs = [
        (sum(trace.buffers[i].nbytes for i in donated_in_use), c, donated_in_use)
        for c, donated_in_use in candidates
        if donated_in_use
    ]
    if not costs:
        return None
    nbytes, program, donated_in_use = min(costs, key=lambda candidate: candidate[0])
    copied = sorted(donated_in_use)
    copies = copies_of([trace.buffers[i] for i in copied])
    plan.copied += max(1, nbytes)
    return program, dict(zip(copied, copies, strict=True))
