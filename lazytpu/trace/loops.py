"""Repeated blocks: a loop that nothing cuts is seen by its ops and lines coming again, and cut there.

An optimizer's step() ends the step by itself; a loop that updates its parameters by hand has no such mark, nor has one
that calls a model under `torch.no_grad()`, and its trace would grow to the size limit. Once a trace is long and its
last records are several repetitions of one block, it ends where a block does. The next trace then begins with a block,
and meets the same end: a hit from then on.
"""

from __future__ import annotations

from lazytpu.trace.cuts import BLOCK
from lazytpu.trace.trie import Record, State

FIRST = 512  # records before anything is looked for: what a short loop records is one program
PLAIN = 8192  # the same for blocks inside a step: layers of a model repeat, too, and belong into one program
REPEATS = 4


def watch(state: State) -> None:
    """Look for a loop that ends at `state`, a new one, and mark where its blocks end."""
    depth = state.depth
    if state.loop is None and depth >= FIRST and depth % (1 << (depth.bit_length() - 3)) == 0:
        state.loop = find(state.records())
    if state.loop is not None:
        start, period = state.loop
        state.ends = BLOCK if (depth - start) % period == 0 else None


def find(records: list[Record]) -> tuple[int, int] | None:
    """(where the repetition starts, records of a block) when more than half of the records repeat a block of a loop."""
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
            rounds = _are_rounds(records[start : start + period], records[-period:])
            return (start, period) if rounds or count >= PLAIN else None
    return None


def _are_rounds(first: list[Record], last: list[Record]) -> bool:
    """Whether the first and the last of equal blocks are rounds of a loop, and not layers of a model.

    The block of a training step has records of a backward pass and others; that of a layer, recomputed or not, has one
    kind. A block that has nothing to do with a model is no layer. Of blocks that no backward pass will need, each layer
    takes parameters of its own, where rounds take again what the first has taken, but for new data.
    """
    if any(r.in_backward for r in last):
        return not all(r.in_backward for r in last)
    if not any(r.in_step for r in last):
        return True
    return not any(r.in_graph for r in last) and 2 * _taken(last) <= _taken(first)


def _taken(block: list[Record]) -> int:
    """How many values from before the trace are used in a block for the first time."""
    return sum(len(r.admitted) for r in block)
