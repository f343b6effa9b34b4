"""What a run of records costs, as far as sizes decide it: the bytes that ops read and write, and their products.

It compares one program at two sizes, so what is left out at both does not matter: that XLA fuses ops, and that tables
whose rows are looked up are not read as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout

LITTLE = 1.25
"The most that padding may cost, as a multiple of the work without it: what buckets with quarters cost at most."
NOTHING = 262_144
"Bytes that a run may read and write in any case: the host takes as long to launch it, some 50 us."
OF_A_RECORD = 65_536
"The same for each of its records: to record one takes the host, with the Python around it, some 15 us."
PER_BYTE = 4
"Products of a multiplication of matrices in the time of a byte, on a core of a CPU; a TPU makes far more."
CONTRACTIONS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "mv", "dot")
"Names of ops that sum over the last dimension of their first factor."
TABLES = ("embedding", "index", "index_select", "gather")
"Names of ops that read some elements of their first operand, as many as they give."
RECURRENT = ("recurrent", "recurrent_backward")
"Names of ops that multiply by all of their weights at each step of a sequence."


def costs_little(most: Sequence[Record], least: Sequence[Record]) -> bool:
    """Whether records at the greatest sizes cost little more than at the least. It is not known of compiled graphs,
    custom kernels, and layers that run through a sequence."""
    if any(_family(record) not in ("aten", "lazytpu") or _name(record) in RECURRENT for record in most):
        return False
    greatest = work(most)
    return greatest <= NOTHING + OF_A_RECORD * len(most) or greatest <= LITTLE * work(least)


def work(records: Sequence[Record]) -> float:
    """The cost of a run, in bytes."""
    layouts = Slots(records).layouts
    return sum(_work(record, layouts) for record in records)


def _work(record: Record, layouts: dict[int, Layout]) -> float:
    name = _name(record)
    found = [each for argument in record.arguments.values() for each in operands(argument)]
    read = [_bytes(each, layouts) for each in found]
    results = [layout for layout in record.outs if layout is not None]
    written = sum(layout.dtype.itemsize * prod(layout.shape) for layout in results)
    total = float(sum(read) + written)
    if name in TABLES:
        total -= read[0] - written
    products = 0
    if name in CONTRACTIONS and results:
        factor = found[1] if name in ("addmm", "baddbmm") else found[0]
        products = prod(results[0].shape) * _shape(factor, layouts)[-1]
    elif "attention" in name and len(found) > 2 and results:  # q, k, v: scores, and their sums
        products = 2 * prod(_shape(found[0], layouts)) * _shape(found[1], layouts)[-2]
    elif "convolution" in name and results:
        weight = _shape(found[-1 if "backward" in name else 1], layouts)
        products = prod(results[0].shape) * prod(weight[1:])
    return total + products / PER_BYTE


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
