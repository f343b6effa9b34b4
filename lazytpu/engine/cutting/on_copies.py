"""A step's program takes the memory of an input that somebody still needs: it runs on a copy of it.

`clone()` shares the value, so after the best weights were put aside, or an average of them was begun, the next step
must leave the old ones alone, once. A program that does is another one, as large as the step's; a copy costs what it
costs to read and write the input. Where this goes on, the step gets that program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.engine.launching.compiled import Compiled, fitting
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.copies import copies_of
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan

LEAST = 16
"Records of a trace whose program takes longer to compile than one that copies."
BYTES = 1 << 30
"That are copied for one trace, until it gets a program: a second of copying on a slow machine, about what that takes."


class OnCopies:
    """A program that runs once, on these `copies` of inputs, by number, and otherwise on those of the trace. They are
    made before it is launched, when an interrupt leaves the step pending."""

    def __init__(self, program: Compiled, copies: Mapping[int, Buffer]):
        self.program = program
        self.binding = program.binding
        self.copies = copies

    def launch(
        self, buffers: Sequence[Buffer], numbers: list[Any], checks: tuple[Check, ...] | None, alone: bool
    ) -> list[Buffer]:
        """As of a `Compiled`."""
        given = [self.copies.get(i, buffer) for i, buffer in enumerate(buffers)]
        return self.program.launch(given, numbers, checks, alone)


def on_copies(plan: CutPlan, trace: Trace, live: Sequence[int], dead: Sequence[int]) -> OnCopies | None:
    """A program that computes at least the slots `live`, and takes the memory of more inputs than those that are
    `dead`, to run on copies of the others. None if one fits as it is, or there is none at all; for a short trace, and
    for one that has copied much."""
    if plan.copied >= BYTES or trace.state.depth < LEAST or trace.mode not in ("fused", "lazy"):
        return None
    if fitting(plan, tuple(live), tuple(dead)) is not None:
        return None
    needed, free = frozenset(live), frozenset(dead)
    programs: list[Compiled] = [*plan.programs.values(), *(j.meanwhile for j in list(plan.jobs) if j.meanwhile)]
    ways = [(c, c.binding.donated - free) for c in programs if needed.issubset(c.binding.live)]
    taken = [(sum(trace.buffers[i].nbytes for i in others), c, others) for c, others in ways if others]
    if not taken:
        return None
    nbytes, program, others = min(taken, key=lambda way: way[0])
    copied = sorted(others)
    copies = copies_of([trace.buffers[i] for i in copied])
    plan.copied += max(1, nbytes)
    return OnCopies(program, dict(zip(copied, copies, strict=True)))
