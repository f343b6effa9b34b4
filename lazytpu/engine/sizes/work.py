"""The cost of a run of records as far as sizes decide it: bytes read and written, and multiplications.

It only compares one program at two sizes. So it ignores costs common to both: XLA's fusion, and that a lookup does not
read the whole table. Records with symbolic sizes have a symbolic cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout

LITTLE = 1.25
"""The greatest cost of a padded run relative to an exact one: the worst case of bounds at quarters."""
NOTHING = 262_144
"""Bytes that any run may read and write: the host takes as long to launch it, some 50 us."""
OF_A_RECORD = 65_536
"""Bytes that each record may read and write: the host takes as long to record it with its Python, some 15 us."""
PER_BYTE = 4
"""Multiplications of a matrix product in the time of a byte, on a CPU core; a TPU does far more."""
CONTRACTIONS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "mv", "dot")
"Names of ops that sum over the last dimension of their first factor."
TABLES = ("embedding", "index", "index_select", "gather")
"""Names of ops that read as many elements of their first operand as they return."""
RECURRENT = ("recurrent", "recurrent_backward")
"""Names of ops that multiply by all of their weights at each step of a sequence."""


def costs_little(records: Sequence[Record], greatest: int, least: int) -> bool:
    """Return whether the `greatest` cost of records is little more than the `least` one.

    Return False for compiled graphs, custom kernels and recurrent layers, whose cost is unknown.
    """
    if any(_family(record) not in ("aten", "lazytpu") or _name(record) in RECURRENT for record in records):
        return False
    of_host = NOTHING + OF_A_RECORD * len(records)
    return greatest <= PER_BYTE * of_host or greatest <= LITTLE * least


def work(records: Sequence[Record]) -> Any:
    """Return the cost of a run, in multiplications; a `Size` if it depends on symbolic sizes."""
    layouts = Slots(records).layouts
    return sum(_work(record, layouts) for record in records)


def _work(record: Record, layouts: dict[int, Layout]) -> Any:
    """Return the cost of one record, in multiplications."""
    name = _name(record)
    inputs = [operand for argument in record.arguments.values() for operand in operands(argument)]
    read = [_bytes(operand, layouts) for operand in inputs]
    results = [layout for layout in record.outs if layout is not None]
    written = sum(layout.dtype.itemsize * prod(layout.shape) for layout in results)
    moved = sum(read) + written
    if name in TABLES:
        moved = moved - read[0] + written
    products = 0
    if name in CONTRACTIONS and results:
        factor = inputs[1] if name in ("addmm", "baddbmm") else inputs[0]
        products = prod(results[0].shape) * _shape(factor, layouts)[-1]
    elif "attention" in name and len(inputs) > 2 and results:  # q, k, v: scores, and their sums
        products = 2 * prod(_shape(inputs[0], layouts)) * _shape(inputs[1], layouts)[-2]
    elif "convolution" in name and results:
        weight = _shape(inputs[-1 if "backward" in name else 1], layouts)
        products = prod(results[0].shape) * prod(weight[1:])
    return PER_BYTE * moved + products


def _family(record: Record) -> str:
    return str(record.op).partition(".")[0]


def _name(record: Record) -> str:
    return str(record.op).split(".")[1]


def _shape(operand: Operand, layouts: dict[int, Layout]) -> tuple[int, ...]:
    return layouts[operand.slot].shape if operand.view is None else operand.view[0]


def _bytes(operand: Operand, layouts: dict[int, Layout]) -> int:
    layout = layouts[operand.slot]
    dtype = layout.dtype if operand.view is None else operand.view[3]
    return dtype.itemsize * prod(_shape(operand, layouts))
