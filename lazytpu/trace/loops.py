"""Repeated blocks: a loop that nothing else cuts is recognized by its repeating ops and lines, and cut.

An optimizer's step() marks the end of a step. A loop that updates parameters by hand has no such mark, nor has one that
calls a model under `torch.no_grad()`: its trace would grow to the size limit. Once a trace is long and its last records
repeat one block several times, it is cut at the end of a block. The next trace then starts with a block and ends in the
same way, so it is a hit from then on.
"""

from __future__ import annotations

from lazytpu.trace.cuts import BLOCK
from lazytpu.trace.trie import Marks, Record, State

FIRST = 512  # records before the search starts: a short loop is one program
PLAIN = 40_000  # the same for blocks inside a step: layers of a model and steps of a solver belong in one program
REPEATS = 4


def watch(state: State) -> None:
    """Search for a loop that ends at the new `state`, and mark where its blocks end."""
    depth, new = state.depth, len(state.recorded)
    loop = state.marks.loop
    if loop is None and depth >= FIRST and depth % (1 << (depth.bit_length() - 3)) < new:
        loop = find(state.records())
    if loop is not None:
        start, period = loop
        state.marks = Marks(loop, BLOCK if (depth - start) % period == 0 else None)


def find(records: list[Record]) -> tuple[int, int] | None:
    """(first record of the repetition, records per block) when more than half of the records repeat a loop's block."""
    numbers: dict[object, int] = {}
    names = [numbers.setdefault((r.op, r.line), len(numbers)) for r in reversed(records)]
    count, borders, border = len(names), [0], 0
    for i in range(1, count):  # borders[i]: the longest proper prefix of names[: i + 1] that is its suffix
        while border and names[i] != names[border]:
            border = borders[border - 1]
        border += names[i] == names[border]
        borders.append(border)
    for length in range(count, count // 2, -1):
        period = length - borders[length - 1]
        if period * REPEATS <= length:
            start = count - length
            iterations = _are_iterations(records[start : start + period], records[-period:])
            return (start, period) if iterations or count >= PLAIN else None
    return None


def _are_iterations(first: list[Record], last: list[Record]) -> bool:
    """Whether the first and the last of equal blocks are iterations of a loop, and not layers of a model.

    The block of a training step has both records of a backward pass and others; the block of a layer, recomputed or
    not, has one kind. A block outside of any model is not a layer. Among blocks that no backward pass will need, each
    layer uses parameters of its own, while an iteration uses the same values as the first one, except for new data.

    A block whose backward pass is itself differentiated is not a step but part of one: an inner optimisation.
    """
    backward = [r for r in last if r.in_backward]
    if backward:
        return len(backward) < len(last) and 2 * sum(r.in_graph for r in backward) < len(backward)
    if not any(r.in_step for r in last):
        return True
    return not any(r.in_graph for r in last) and 2 * _new_inputs(last) <= _new_inputs(first)


def _new_inputs(block: list[Record]) -> int:
    """How many inputs of the trace a block is the first to use."""
    return sum(len(r.admitted) for r in block)
