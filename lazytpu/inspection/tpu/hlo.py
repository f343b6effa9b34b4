"""Scheduled HLO from the TPU compiler: computations, ops in order, source lines, estimated cycles.

It is read from the compiler's protobuf (xla/service/hlo.proto and xla/xla_data.proto, which define the field numbers)
rather than from text, so that a dangling name, or an op missing from the schedule, is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from lazytpu.inspection.tpu.arrays import Array, arrays
from lazytpu.inspection.tpu.wire import Message
from lazytpu.ir.scope import scope_of

KERNEL = "tpu_custom_call"
"The call target of kernels written in Pallas."


@dataclass(frozen=True, slots=True, order=True)
class ProgramLine:
    """A line of the user's program; `backward` if the op computes its gradient. `module` is the path of the module that
    recorded the op there; lines are equal whatever it is."""

    file: str
    line: int
    backward: bool = False
    module: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{' (backward)' if self.backward else ''}"


@dataclass(frozen=True)
class Op:
    """An instruction: its name, its opcode, and the names of its operands and of the computations that it calls. `raw`
    is the HloInstructionProto.

    - `fusion` is the kind of a fusion, such as "kLoop", and `target` that of a custom call; empty for other ops.
    - `parameter` is the number of a parameter.
    - `in_operands`: some results of a custom call reuse the memory of its operands (output_operand_aliasing).
    """

    name: str
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    raw: Message
    fusion: str
    target: str
    parameter: int
    in_operands: bool

    @cached_property
    def results(self) -> tuple[Array, ...]:
        """Its result, or the elements of a tuple."""
        return arrays(self.raw.message(3))

    @cached_property
    def constant(self) -> int | None:
        """The value of a constant that is one integer; None for other ops."""
        literal = self.raw.message(8)
        numbers = [value for kind in (3, 4, 5, 6, 7) for value in literal.integers(kind)]
        return numbers[0] if self.opcode == "constant" and len(numbers) == 1 else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The compiler's annotations (backend_config)."""
        text = self.raw.text(43)
        return json.loads(text) if text.startswith("{") else {}

    @cached_property
    def frontend(self) -> dict[str, str]:
        """Attributes that came with the program."""
        return {entry.text(1): entry.text(2) for entry in self.raw.message(68).messages(1)}

    @cached_property
    def group(self) -> tuple[int, ...] | None:
        """The largest group of a collective; None if it names no groups. Raises ValueError for groups given as axes of
        a mesh."""
        if self.raw.raw(98):
            raise ValueError(f"the groups of {self.name} are given as axes of a mesh, which is not supported here")
        listed = self.raw.messages(49) or self.raw.message(87).messages(1)
        if listed:
            return max((group.integers(1) for group in listed), key=len)
        iota = self.raw.message(92)  # devices in order, reshaped, transposed, and reshaped into groups
        if not iota.integer(2):
            return None
        dims, order = iota.integers(3), iota.integers(4)
        devices = np.arange(prod(dims)).reshape(dims).transpose(order or range(len(dims)))
        return tuple(devices.reshape(-1, iota.integer(2))[0].tolist())

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(source, target) of a permutation."""
        return [(pair.integer(1), pair.integer(2)) for pair in self.raw.messages(52)]

    @property
    def simulated(self) -> int | None:
        """Cycles by the compiler's simulation of the emitted code."""
        cycles = self.config.get("bundle_analysis_data", {}).get("estimated_cycles")
        return None if cycles is None else int(cycles)

    @property
    def cycles(self) -> int | None:
        """Cycles by the simulation, else by the compiler's estimate; None without either."""
        estimate = self.config.get("window_config", {}).get("estimated_cycles")
        return self.simulated if estimate is None or self.simulated is not None else int(estimate)


@dataclass(frozen=True)
class Computation:
    """Ops in the order in which they start."""

    name: str
    ops: list[Op] = field(default_factory=list[Op])

    @cached_property
    def by_name(self) -> dict[str, Op]:
        """The ops by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def users(self) -> dict[str, list[tuple[Op, int]]]:
        """For each op, its users and the operand index of each use."""
        by_operand: dict[str, list[tuple[Op, int]]] = {}
        for op in self.ops:
            for place, operand in enumerate(op.operands):
                by_operand.setdefault(operand, []).append((op, place))
        return by_operand


@dataclass(frozen=True)
class Hlo:
    """A module: its computations by name, the entry, and source lines."""

    computations: dict[str, Computation]
    entry: Computation
    frames: Sequence[ProgramLine]

    def line(self, op: Op) -> ProgramLine | None:
        """Return the line in an op's metadata."""
        metadata = op.raw.message(7)
        file, line, frame = metadata.text(3), metadata.integer(4), metadata.integer(15)
        if not (file and line) and 0 < frame <= len(self.frames):
            file, line = self.frames[frame - 1].file, self.frames[frame - 1].line
        # For a missing location MLIR uses a line of the module's own text, in the file "-".
        if not (file and line) or file == "-":
            return None
        return ProgramLine(file, line, *scope_of(metadata.text(2)))

    def named(self, op: Op) -> str | None:
        """Return the name in an op's metadata; for a parameter, it is the argument's name."""
        return op.raw.message(7).text(2) or None

    def nested(self, op: Op) -> list[Computation]:
        """Return the computations that an op calls, including nested fusions."""
        computations: list[Computation] = []
        pending, seen = list(op.called), set(op.called)
        while pending:
            computations.append(self.computations[pending.pop()])
            for inner in computations[-1].ops:
                pending += [name for name in dict.fromkeys(inner.called) if name not in seen]
                seen.update(inner.called)
        return computations

    def inside(self, op: Op) -> list[Op]:
        """Return the op and all ops of the computations that it calls."""
        return [op, *(inner for computation in self.nested(op) for inner in computation.ops)]


def read_hlo(data: bytes) -> Hlo:
    """Return the module of an HloProto. Raises ValueError if the bytes are not an HloProto, or are inconsistent."""
    module = Message(data).message(1) if data else Message(b"")
    computations = module.messages(3)
    if not computations:
        raise ValueError("expected an HloProto with a module, which has computations")
    names = {raw.integer(5): raw.text(1) for raw in computations}
    if len(set(names.values())) != len(computations):
        raise ValueError("expected an HLO module whose computations have distinct names")
    order = {raw.integer(1): raw.message(2).integers(1) for raw in module.message(7).messages(1)}
    read = {names[raw.integer(5)]: _computation(raw, names, order.get(raw.integer(5))) for raw in computations}
    entry = names.get(module.integer(6))
    if entry is None or module.integer(6) not in order:
        raise ValueError("expected a scheduled HLO module with an entry computation")
    return Hlo(read, read[entry], _frames(module.message(17)))


def _computation(raw: Message, names: dict[int, str], order: Sequence[int] | None) -> Computation:
    """Return the ops of a HloComputationProto, in the order of the schedule if there is one."""
    name, ops = raw.text(1), {instruction.integer(35): instruction for instruction in raw.messages(2)}
    if order is not None and sorted(order) != sorted(ops):
        raise ValueError(f"the schedule of {name} has {len(order):,} ops, not the {len(ops):,} ops of the computation")
    op_names = {number: instruction.text(1) for number, instruction in ops.items()}
    if raw.integer(6) not in ops:
        raise ValueError(f"the computation {name} has no result")
    ordered = [
        Op(
            raw_op.text(1),
            raw_op.text(2),
            tuple(_named(raw_op.integers(36), op_names, name)),
            tuple(_named(raw_op.integers(38), names, name)),
            raw_op,
            fusion=raw_op.text(11),
            target=raw_op.text(28),
            parameter=raw_op.integer(9),
            in_operands=bool(raw_op.messages(74)),
        )
        for raw_op in (ops[number] for number in (ops if order is None else order))
    ]
    return Computation(name, ordered)


def _named(numbers: Iterable[int], names: dict[int, str], where: str) -> list[str]:
    try:
        return [names[number] for number in numbers]
    except KeyError as error:
        raise ValueError(f"an op of {where} refers to number {error}, which the module does not have") from None


def _frames(index: Message) -> list[ProgramLine]:
    """Return the innermost line of each stack frame; frames are numbered from 1."""
    files = index.texts(1)
    places = [(place.integer(1), place.integer(3)) for place in index.messages(3)]
    lines: list[ProgramLine] = []
    for frame in index.messages(4):
        file, line = places[frame.integer(1) - 1]
        lines.append(ProgramLine(files[file - 1] if 0 < file <= len(files) else "?", line))
    return lines
