"""A step's program takes the memory of an input that somebody still needs: it runs on a copy of it.

`clone()` shares the value, so after the best weights were put aside, or an average of them was begun, the next step
must leave the old ones alone, once. A program that does is another one, as large as the step's; a copy costs what it
costs to read and write the input. Where this goes on, the step gets that program.
"""

from __future__ import annotations

from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.copies import copies_of

LEAST = 16
"Records of a trace whose program takes longer to compile than one that copies."
BYTES = 1 << 30
"That are copied for one trace, until it gets a program: a second of copying on a slow machine, about what that takes."


def on_copies(cut: Cut) -> tuple[Compiled, dict[int, Buffer]] | None:
    """A program that computes at least the live slots of a cut, and takes the memory of more inputs than those that are
    dead, with copies of the others, by index. None if one fits as it is, or there is none at all; for a short trace,
    and for one that has copied much.

    The copies are made before the program is launched, when an interrupt leaves the step pending."""
    plan, trace = cut.plan, cut.trace
    if plan.copied >= BYTES or trace.state.depth < LEAST or trace.mode not in ("fused", "lazy"):
        return None
    if fitting(plan, cut.live, cut.dead) is not None:
        return None
    needed, free = frozenset(cut.live), frozenset(cut.dead)
    programs: list[Compiled] = [*plan.programs.values(), *(j.meanwhile for j in list(plan.jobs) if j.meanwhile)]
    candidates = [(c, c.binding.donated - free) for c in programs if needed.issubset(c.binding.live)]
    taken = [(sum(trace.buffers[i].nbytes for i in others), c, others) for c, others in candidates if others]
    if not taken:
        return None
    nbytes, program, others = min(taken, key=lambda candidate: candidate[0])
    copied = sorted(others)
    copies = copies_of([trace.buffers[i] for i in copied])
    plan.copied += max(1, nbytes)
    return program, dict(zip(copied, copies, strict=True))
