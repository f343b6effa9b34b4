"""Builds the loop of aligned iterations.

Rows of values from outside are stacked before the loop and read at the index. Results of several iterations with uses
outside are written to a stack at the index. The loop counts from 0, so the row of an iteration is its number.
Properties that differ between iterations are functions of it: affine if the numbers are, else a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue

from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.building.control import COUNTER, put_row, row_at
from lazytpu.ir.building.regions import RegionMethods
from lazytpu.ir.constants import ConstantOp, DenseConstantOp, NumberOp
from lazytpu.ir.control import WhileOp
from lazytpu.ir.literals import to_bytes
from lazytpu.ir.location import shared
from lazytpu.ir.shape import PadOp, SliceOp
from lazytpu.ir.types import dtype_of, ints, shape_of, string, tensor_type
from lazytpu.passes.loops.alignment import Alignment, Carried, Local, Operand, Rebuilt, Rows, Same

ROLLED = "lazytpu.rolled"
"""Attribute of a rolled loop: a description for people."""


def build(alignment: Alignment, b: Builder, note: str) -> list[SSAValue]:
    """Build the loop with `b`, and replace the outer uses of the iterations' results. Return the new stacks."""
    return _Rolling(alignment, b).build(note)


@dataclass
class _Rolling:
    aligned: Alignment
    b: Builder
    stacked: dict[Rows, tuple[SSAValue, list[int]]] = field(default_factory=dict["Rows", "tuple[SSAValue, list[int]]"])
    """Rows -> a stack of their distinct values, and the index of each row in it."""

    def build(self, note: str) -> list[SSAValue]:
        aligned, last = self.aligned, self.aligned.trips - 1
        stacks = [place for place, iterations in aligned.used.items() if iterations != [last]]
        finals = [place for place, iterations in aligned.used.items() if iterations == [last]]
        carried_after = {
            (carry.after.position, carry.after.result): number
            for number, carry in enumerate(aligned.carries)
            if isinstance(carry.after, Local)
        }
        only_last = [place for place in finals if place not in carried_after]
        starts = [carry.start for carry in aligned.carries]
        starts += [self._zeros(place) for place in only_last]
        starts += [self._zeros(place, aligned.trips) for place in stacks]

        def body(inner: RegionMethods, i: SSAValue, *values: SSAValue) -> list[SSAValue]:
            iteration = _Iteration(self, inner, i, values)
            iteration.fill()
            rows = values[len(values) - len(stacks) :]
            after = [iteration.operand(carry.after) for carry in aligned.carries]
            after += [iteration.results[place] for place in only_last]
            return after + [
                put_row(inner, stack, iteration.results[place], i) for stack, place in zip(rows, stacks, strict=True)
            ]

        with self.b.at(aligned.iterations[0][0].location):
            final = self.b.repeat(aligned.trips, starts, body)
            self._note(final, note)
            of_stacks = final[len(final) - len(stacks) :] if stacks else []
            for place, stack in zip(stacks, of_stacks, strict=True):
                for iteration in aligned.used[place]:
                    self._replace(place, iteration, take(self.b, stack, iteration))
            for place in finals:
                number = carried_after.get(place)
                number = len(aligned.carries) + only_last.index(place) if number is None else number
                self._replace(place, last, final[number])
        return of_stacks

    def _zeros(self, place: tuple[int, int], trips: int | None = None) -> SSAValue:
        """Return zeros as the initial value of a result that is only written, or of a stack of it."""
        result = self.aligned.iterations[0][place[0]].results[place[1]]
        shape = shape_of(result) if trips is None else (trips, *shape_of(result))
        return self.b.constant(0, dtype_of(result), shape)

    def _replace(self, place: tuple[int, int], iteration: int, value: SSAValue) -> None:
        self.aligned.iterations[iteration][place[0]].results[place[1]].replace_all_uses_with(value)

    @staticmethod
    def _note(final: Sequence[SSAValue], note: str) -> None:
        loop = final[0].owner
        assert isinstance(loop, WhileOp)
        loop.attributes[ROLLED] = string(note)

    def stack(self, rows: Rows) -> tuple[SSAValue, list[int]]:
        """Return the stack of the distinct values among some rows, and the index of each row in it."""
        if rows not in self.stacked:
            place = {value: number for number, value in enumerate(dict.fromkeys(rows.values))}
            slices = [self.b.reshape(value, (1, *shape_of(value))) for value in place]
            self.stacked[rows] = self.b.concatenate(slices, 0), [place[value] for value in rows.values]
        return self.stacked[rows]


@dataclass
class _Iteration:
    """Fills the body of the loop."""

    rolling: _Rolling
    b: RegionMethods
    i: SSAValue
    carried: Sequence[SSAValue]
    results: dict[tuple[int, int], SSAValue] = field(default_factory=dict[tuple[int, int], SSAValue])
    built: dict[Operand, SSAValue] = field(default_factory=dict["Operand", SSAValue])
    indices: dict[tuple[int, ...], SSAValue] = field(default_factory=dict[tuple[int, ...], SSAValue])

    def fill(self) -> None:
        aligned = self.rolling.aligned
        for position, operands in enumerate(aligned.operands):
            ops = tuple(iteration[position] for iteration in aligned.iterations)
            values = [self.operand(operand) for operand in operands]
            with self.b.at(shared([op.location for op in ops])):
                for number, result in enumerate(self.op(ops, values)):
                    self.results[position, number] = result

    def operand(self, operand: Operand) -> SSAValue:
        """Return the value of an operand in an iteration."""
        if isinstance(operand, Local):
            return self.results[operand.position, operand.result]
        if isinstance(operand, Carried):
            return self.carried[operand.number]
        if operand not in self.built:
            self.built[operand] = self._build(operand)
        return self.built[operand]

    def _build(self, operand: Same | Rebuilt | Rows) -> SSAValue:
        if isinstance(operand, Same):
            return self.b.local(operand.value)
        if isinstance(operand, Rebuilt):
            values = [self.operand(inner) for inner in operand.operands]
            with self.b.at(shared([op.location for op in operand.ops])):
                return self.op(operand.ops, values)[0]
        stack, places = self.rolling.stack(operand)
        return row_at(self.b, stack, self.index(places))

    def op(self, ops: Sequence[Operation], operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
        """Build the op that stands for these ops, one in each iteration, and return its results."""
        first = ops[0]
        for kind, build in AT_INDEX.items():
            if isinstance(first, kind) and any(op.properties != first.properties for op in ops):
                return [build(self, ops, operands)]
        assert isinstance(first, TensorOp)
        copy = first.clone(clone_name_hints=False)
        copy.operands = [self.b.local(value) for value in operands]
        copy.location = shared([op.location for op in ops])
        self.b.insert(copy)
        return copy.results

    def index(self, numbers: Sequence[int]) -> SSAValue:
        """Return the i-th of these numbers."""
        key = tuple(numbers)
        if key not in self.indices:
            self.indices[key] = self._index(key)
        return self.indices[key]

    def _index(self, numbers: tuple[int, ...]) -> SSAValue:
        step = numbers[1] - numbers[0]
        if any(number != numbers[0] + i * step for i, number in enumerate(numbers)):
            return row_at(self.b, self.b.array(np.asarray(numbers), COUNTER), self.i)
        if not step:
            return self.b.constant(numbers[0], COUNTER)
        scaled = self.i if abs(step) == 1 else self.b.binary("mul", self.i, self.b.constant(abs(step), COUNTER))
        if step < 0:
            return self.b.binary("sub", self.b.constant(numbers[0], COUNTER), scaled)
        return self.b.binary("add", scaled, self.b.constant(numbers[0], COUNTER)) if numbers[0] else scaled

    def starts(self, of_ops: Sequence[tuple[int, ...]]) -> list[SSAValue]:
        """Return the start of a slice in each dimension."""
        return [self.index(numbers) for numbers in zip(*of_ops, strict=True)]


def _number(at: _Iteration, ops: Sequence[Operation], operands: Sequence[SSAValue]) -> SSAValue:
    """Build run-time numbers at different indices of a pack."""
    places = [integer(op.index) for op in ops if isinstance(op, NumberOp)]
    return row_at(at.b, operands[0], at.index(places))


def _constant(at: _Iteration, ops: Sequence[Operation], operands: Sequence[SSAValue]) -> SSAValue:
    """Build constants of different numbers."""
    values = [to_bytes(op.value) for op in ops if isinstance(op, ConstantOp)]
    dtype, shape = dtype_of(ops[0].results[0]), shape_of(ops[0].results[0])
    if dtype == COUNTER:
        number = at.index([int.from_bytes(value, "little", signed=True) for value in values])
    else:
        number = row_at(at.b, _table(at.b, dtype, (len(ops),), b"".join(values)), at.i)
    return at.b.broadcast_to(number, shape)


def _dense_constant(at: _Iteration, ops: Sequence[Operation], operands: Sequence[SSAValue]) -> SSAValue:
    """Build tables of different numbers."""
    result = ops[0].results[0]
    data = "".join(op.data.data for op in ops if isinstance(op, DenseConstantOp))
    table = _table(at.b, dtype_of(result), (len(ops), *shape_of(result)), bytes.fromhex(data))
    return row_at(at.b, table, at.i)


def _table(b: RegionMethods, dtype: str, shape: Sequence[int], data: bytes) -> SSAValue:
    return b.one(DenseConstantOp, (), tensor_type(dtype, shape), {"data": StringAttr(data.hex())})


def _slice(at: _Iteration, ops: Sequence[Operation], operands: Sequence[SSAValue]) -> SSAValue:
    """Build slices of one size at different starts."""
    slices = [op for op in ops if isinstance(op, SliceOp)]
    strides = ints(slices[0].strides)
    sizes = [(n - 1) * stride + 1 for n, stride in zip(shape_of(slices[0].result), strides, strict=True)]
    window = at.b.dynamic_slice(operands[0], at.starts([ints(op.starts) for op in slices]), sizes)
    return at.b.slice(window, [0] * len(sizes), sizes, strides)


def _pad(at: _Iteration, ops: Sequence[Operation], operands: Sequence[SSAValue]) -> SSAValue:
    """Build a pad of an array into a larger one at different positions."""
    pads = [op for op in ops if isinstance(op, PadOp)]
    around = at.b.broadcast_in_dim(operands[1], shape_of(pads[0].results[0]), ())
    return at.b.dynamic_update_slice(around, operands[0], at.starts([ints(op.low) for op in pads]))


AT_INDEX: dict[
    type[TensorOp], Callable[[_Iteration, Sequence[Operation], Sequence[SSAValue]], SSAValue]
] = {
    NumberOp: _number,
    ConstantOp: _constant,
    DenseConstantOp: _dense_constant,
    SliceOp: _slice,
    PadOp: _pad,
}  # fmt: skip
"""Op class -> the function that builds ops whose properties differ between iterations."""


def take(b: RegionMethods, stack: SSAValue, row: int) -> SSAValue:
    """Return stack[row], for a constant row."""
    shape = shape_of(stack)
    slice_of_row = b.slice(stack, [row, *(0 for _ in shape[1:])], [row + 1, *shape[1:]])
    return b.reshape(slice_of_row, shape[1:])
