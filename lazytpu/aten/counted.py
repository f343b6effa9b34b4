"""Functions with sizes that are counted on the device: one program for the greatest counts, built once and inlined at
each call."""

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
"""Counts, by number, that torch refuses in combination; the message, and the exception."""


@dataclass(frozen=True)
class Counted:
    """The block of a function. Its arguments are packs of constants, with the numbers `packs`, the arguments of the
    subtrace by their numbers (`inputs`), and the pack of counts. It returns the results of the subtrace, then all
    counts (`counts` of them), then whether its checks passed, each with its message and exception. `refused` are the
    combinations of counts that torch refuses."""

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
    clones: dict[SSAValue, SSAValue] = {}
    for argument, index in zip(arguments[len(packs) :], of.inputs, strict=True):
        clones[argument] = base_of(function.arguments[index]).to_memory(b, b.local(inputs[index]))
    *values, status = last.operands
    totals = values[len(values) - of.counts :]

    def count(number: int) -> SSAValue:
        total = clones.get(totals[number])
        return b.constant(0, "i32") if total is None else b.convert(total, "i32")

    for op in of.block.ops:
        if op is last:
            break
        assert isinstance(op, TensorOp)
        if isinstance(op, NumberOp):
            index = op.index.value.data
            pack = packs.get(op.pack)
            clones[op.result] = count(index) if pack is None else b.constant(pack[index].item(), dtype_of(op.result))
            continue
        if sizes in op.operands:  # for the regions of the op
            clones[sizes] = b.concatenate([b.reshape(count(i), (1,)) for i in range(of.counts)], 0)
        b.insert(op.clone(clones))
    for refused_counts, message, error in of.refused:
        differs = [b.compare("NE", count(n), b.constant(size, "i32")) for n, size in refused_counts]
        b.check(reduce(b.or_, differs), message, error)
    for i, (message, error) in enumerate(of.checks):
        b.check(b.slice(clones[status], [i], [i + 1]), message, error)
    outs = zip(function.outs, values, strict=True)
    return [base_of(out).to_logical(b, clones[value]) for out, value in outs]
