"""Functions with sizes that are counted on the device: a program of the greatest counts, made one for all of them, and
put where it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from lazytpu.aten.control_flow import run_subtrace
from lazytpu.aten.importer import base_of
from lazytpu.aten.registry import rule
from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import NumberOp
from lazytpu.ir.symbolic import MIN_SYMBOL
from lazytpu.ir.types import dtype_of
from lazytpu.trace.subtraces import SUBTRACES, Subtrace

if TYPE_CHECKING:
    from xdsl.ir import Block

    from lazytpu.ir.builder import Builder


@dataclass(frozen=True)
class Counted:
    """The block of a function for counts of at least `MIN_SYMBOL`.

    Its arguments are packs of constants, with the numbers `packs`, then the arguments of the subtrace by their numbers
    (`inputs`), then the pack of the counts `varying`; its other counts are fixed. It returns the results of the
    subtrace, then all `counts`, then whether its `checks` passed, each with its message and exception. Keys of `few`
    and `refused` are (number of a count, its value): the digest of the function for that count, and the message and
    exception with which torch refuses it.
    """

    block: Block
    packs: Sequence[Any]
    inputs: Sequence[int]
    counts: int
    varying: Sequence[int]
    checks: Sequence[tuple[str, str]]
    few: Mapping[tuple[int, int], str]
    refused: Mapping[tuple[int, int], tuple[str, str]]


COUNTED: dict[str, Counted] = {}
"By the digest of the subtrace. A function that is missing here has no varying count."


@rule("lazytpu.counted.default")
def counted(b: Builder, inputs: list[SSAValue], body: str) -> list[SSAValue]:
    """Return the results of a subtrace at the counts that its program computes."""
    of, function = COUNTED.get(body), SUBTRACES[body]
    if of is None:
        return run_subtrace(b, body, inputs)
    values, passed, totals = _values(b, of, function, inputs)
    outs = [base_of(out).to_logical(b, value) for out, value in zip(function.outs, values, strict=True)]

    # The checks of this block do not apply to few elements, whose functions have their own.
    numbers = sorted({number for number, _ in of.few})
    few = [b.compare("LT", totals[number], b.constant(MIN_SYMBOL, "i32")) for number in numbers]
    is_few = reduce(b.or_, few, b.constant(False, "i1"))
    for (number, size), (message, error) in of.refused.items():
        b.check(b.compare("NE", totals[number], b.constant(size, "i32")), message, error)
    for i, (message, error) in enumerate(of.checks):
        b.check(b.or_(b.reshape(b.slice(passed, [i], [i + 1]), ()), is_few), message, error)

    # Choose by the first count that is few: the functions of that count compute the later counts.
    def of_few(inner: Builder, number: int) -> list[SSAValue]:
        bodies = [of.few[number, size] for size in range(MIN_SYMBOL) if (number, size) in of.few]
        taken = [inner.local(value) for value in inputs]
        if len(bodies) == 1:
            return counted(inner, taken, bodies[0])
        is_none = inner.compare("EQ", inner.local(totals[number]), inner.constant(0, "i32"))
        return inner.if_(
            is_none,
            lambda deeper, *given: counted(deeper, list(given), bodies[0]),
            lambda deeper, *given: counted(deeper, list(given), bodies[1]),
            taken,
        )

    def chosen(inner: Builder, at: int) -> list[SSAValue]:
        if at == len(numbers):
            return [inner.local(value) for value in outs]
        return inner.if_(
            inner.local(few[at]),
            lambda deeper: of_few(deeper, numbers[at]),
            lambda deeper: chosen(deeper, at + 1),
        )

    return chosen(b, 0)


def _values(
    b: Builder, of: Counted, function: Subtrace, inputs: Sequence[SSAValue]
) -> tuple[list[SSAValue], SSAValue, list[SSAValue]]:
    """Return the results of a block in memory order, whether its checks passed (i1[checks]), its counts (0-d i32)."""
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
            number = count(of.varying[index]) if pack is None else b.constant(pack[index].item(), dtype_of(op.result))
            clones[op.result] = number
            continue
        if sizes in op.operands:  # for the regions of the op
            clones[sizes] = b.concatenate([b.reshape(count(i), (1,)) for i in of.varying], 0)
        b.insert(op.clone(clones))
    return [clones[value] for value in values], clones[status], [count(number) for number in range(of.counts)]
