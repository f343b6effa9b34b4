"""Lines of backward ops whose forward ops were all found in the trie, so that no line was noted for their nodes.

A node of autograd's graph refers to tensors of its forward op: the saved ones, and the leaves whose gradients it
computes. The forward record with the op of the node that reads or computes one of them has the line. A node without
such tensors, as of an addition, stays without a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lazytpu.frontend.lines import SourceLine, has_forward, note_forward
from lazytpu.frontend.observed import is_a, value_of
from lazytpu.frontend.torch_private import backward_id
from lazytpu.trace.extract import operands
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Record

_BACKWARD = re.compile(r"Backward\d*$")
Lines = dict[tuple[str, int], SourceLine | None]


def note_replayed(recorder: Recorder, node: Any) -> None:
    """Note the line of the forward op of a node, unless it is known."""
    number = node._sequence_nr()
    if has_forward(number):
        return
    name = _BACKWARD.sub("", node.name()).lower()
    lines = _lines(recorder)
    for value in filter(None, map(value_of, _tensors(node))):
        line = lines.get((name, value.slot)) if value.epoch == recorder.epoch else None
        if line is not None:
            note_forward(line, number)
            return


_newest: tuple[tuple[int, int, int], Lines] = ((-1, -1, -1), {})
"The lines of the newest backward pass: the id of its recorder, its epoch, and its own number."


def _lines(recorder: Recorder) -> Lines:
    """Return the lines of the trace's forward records by their op and each slot that they read or compute; None where
    several lines do."""
    global _newest
    key = id(recorder), recorder.epoch, backward_id()
    if _newest[0] == key:
        return _newest[1]
    lines: Lines = {}
    _newest = key, lines
    for record in recorder.state.records():
        if record.in_graph and not record.in_backward:
            name = str(record.op).split(".")[1].replace("_", "")
            for slot in _slots(record):
                lines[name, slot] = record.line if _same(lines.get((name, slot), record.line), record.line) else None
    return lines


def _same(one: SourceLine | None, other: SourceLine | None) -> bool:
    return one is not None and other is not None and (one, one.module) == (other, other.module)


def _slots(record: Record) -> Iterator[int]:
    yield from record.out_slots
    for argument in record.arguments.values():
        yield from (operand.slot for operand in operands(argument))


def _tensors(node: Any) -> Iterator[Any]:
    """Yield the tensors to which a node refers, and other things that it has saved. Tensors that hooks have packed, as
    of a checkpoint, stay so."""
    for edge, _ in node.next_functions:
        yield getattr(edge, "variable", None)
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            try:
                saved = getattr(node, name)
            except RuntimeError:  # a function in Python that has run and freed its tensors
                return
            yield from (getattr(one, "data", None) for one in (saved if is_a(saved, tuple) else (saved,)))
