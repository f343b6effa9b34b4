"""Functions with sizes that are counted on the device: a program of the greatest counts, made one for all of them, and
put where it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from lazytpu.aten.importer import base_of
from lazytpu.aten.registry import rule
from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import NumberOp
from lazytpu.ir.types import dtype_of
from lazytpu.trace.subtraces import SUBTRACES

if TYPE_CHECKING:
    from xdsl.ir import Block

    from lazytpu.ir.builder import Builder


Refused = tuple[tuple[tuple[int, int], ...], str, str]
"Counts, by number, that torch refuses when they are so many together; the message, and the exception."


@dataclass(frozen=True)
class Counted:
    """The block of a function. Its arguments are packs of constants, with the numbers `packs`, the arguments of the
    subtrace by their numbers (`inputs`), and the pack of counts. It returns what the subtrace does, which gives all
    counts in the end (`counts` of them), and whether its checks passed: of each its message and the exception. Some
    counts are `refused`."""

    block: Block
    packs: Sequence[Any]
    inputs: Sequence[int]
    counts: int
    checks: Sequence[tuple[str, str]]
    refused: Sequence[Refused]


COUNTED: dict[str, Counted] = {}
"By the digest of the subtrace."


@rule("lazytpu.counted.default")
def counted(b: Builder, inputs: list[SSAValue], body: str) -> list[SSAValue]:
    """The results of a subtrace."""
    of, function = COUNTED[body], SUBTRACES[body]
    last = of.block.last_op
    assert last is not None
    *arguments, sizes = of.block.args
    packs: dict[SSAValue, Any] = dict(zip(arguments, of.packs, strict=False))
    known: dict[SSAValue, SSAValue] = {}
    for argument, index in zip(arguments[len(packs) :], of.inputs, strict=True):
        known[argument] = base_of(function.arguments[index]).to_memory(b, b.local(inputs[index]))
    *values, status = last.operands
    totals = values[len(values) - of.counts :]

    def count(number: int) -> SSAValue:
        total = known.get(totals[number])
        return b.constant(0, "i32") if total is None else b.convert(total, "i32")

    for op in of.block.ops:
        if op is last:
            break
        assert isinstance(op, TensorOp)
        if isinstance(op, NumberOp):
            index = op.index.value.data
            pack = packs.get(op.pack)
            known[op.result] = count(index) if pack is None else b.constant(pack[index].item(), dtype_of(op.result))
            continue
        if sizes in op.operands:  # for the regions of the op
            known[sizes] = b.concatenate([b.reshape(count(i), (1,)) for i in range(of.counts)], 0)
        b.insert(op.clone(known))
    for few, message, error in of.refused:
        b.check(reduce(b.or_, [b.compare("NE", count(n), b.constant(size, "i32")) for n, size in few]), message, error)
    for i, (message, error) in enumerate(of.checks):
        b.check(b.slice(known[status], [i], [i + 1]), message, error)
    outs = zip(function.outs, values, strict=True)
    return [base_of(out).to_logical(b, known[value]) for out, value in outs]
