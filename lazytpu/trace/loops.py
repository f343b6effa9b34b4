"""Repeated blocks: detect a loop without other cuts by its repeating ops and lines, and cut it.

An optimizer's step() marks the end of a step. A loop that updates parameters by hand has no such mark, nor has a loop
that calls a model under `torch.no_grad()`: its trace would grow to the size limit. Once a trace is long and its last
records repeat a block several times, it is cut at the end of a block. The next trace starts with a block and ends with
one, so the following ones are hits.
"""

from __future__ import annotations

from lazytpu.trace.cuts import BLOCK
from lazytpu.trace.trie import Marks, Record, State

FIRST = 512  # minimum records before the search: a short loop is one program
# The same for blocks inside a step: the layers of a model, or the steps of a solver, belong in one program.
PLAIN = 40_000
REPEATS = 4  # periods in a row before a trace is taken for a loop


def watch(state: State) -> None:
    """Search for a loop that ends at the new `state`, and mark the ends of its blocks."""
    depth, new = state.depth, len(state.recorded)
    loop = state.marks.loop
    if loop is None and depth >= FIRST and depth % (1 << (depth.bit_length() - 3)) < new:
        loop = find(state.records())
    if loop is not None:
        start, period = loop
        state.marks = Marks(loop, BLOCK if (depth - start) % period == 0 else None)


def find(records: list[Record]) -> tuple[int, int] | None:
    """Return (first record of the repetition, records per block) if more than half of the records repeat one block."""
    numbers: dict[object, int] = {}
    names = [numbers.setdefault((r.op, r.line), len(numbers)) for r in reversed(records)]
    count, borders, border = len(names), [0], 0
    # KMP failure function: borders[i] is the length of the longest proper prefix of names[: i + 1] that is also its
    # suffix.
    for i in range(1, count):
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
    """Return whether equal blocks, given the first and the last one, are iterations of a loop rather than layers of a
    model.

    - A block with records of a backward pass and others is a training step; a layer, recomputed or not, has only one
      kind.
    - Such a block is no step if its backward pass is itself differentiated: it is an inner optimization.
    - A block outside any model is an iteration.
    - Without a backward pass, a layer uses its own parameters. An iteration uses the values of the first one, except
      for new data.
    """
    backward = [r for r in last if r.in_backward]
    if backward:
        return len(backward) < len(last) and 2 * sum(r.in_graph for r in backward) < len(backward)
    if not any(r.in_step for r in last):
        return True
    return not any(r.in_graph for r in last) and 2 * _new_inputs(last) <= _new_inputs(first)


def _new_inputs(block: list[Record]) -> int:
    """Return the number of inputs of the trace that a block is the first to use."""
    return sum(len(r.admitted) for r in block)
