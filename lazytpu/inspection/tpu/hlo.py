"""Scheduled HLO, as the TPU compiler made it: computations, ops in their order, lines, estimated cycles.

It is read from the compiler's protobuf (xla/service/hlo.proto, xla/xla_data.proto; numbers of fields are theirs), not
from text: whatever names something that is not there, or runs in no place of the schedule, is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lazytpu.inspection.tpu.arrays import Array, arrays
from lazytpu.inspection.tpu.wire import Message

KERNEL = "tpu_custom_call"
"The target of calls of kernels that are written with Pallas."


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A line of the user's program; `backward` for what computes its gradient."""

    file: str
    line: int
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{' (backward)' if self.backward else ''}"


@dataclass(frozen=True)
class Op:
    """One instruction: its name, its opcode, the names of its operands and of the computations that it runs; `results`
    is its result, or the parts of it. `raw` is the HloInstructionProto."""

    name: str
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    raw: Message
    root: bool = False

    @cached_property
    def results(self) -> tuple[Array, ...]:
        """Its result, or the parts of it."""
        return arrays(self.raw.message(3))

    @property
    def fusion(self) -> str:
        """The kind of a fusion, "kLoop"; empty for another op."""
        return self.raw.text(11)

    @property
    def parameter(self) -> int:
        """The number of a parameter."""
        return self.raw.integer(9)

    @property
    def in_operands(self) -> bool:
        """Whether some of a custom call's results lie in the memory of its operands (output_operand_aliasing)."""
        return bool(self.raw.messages(74))

    @property
    def target(self) -> str:
        """What a custom call calls; empty for another op."""
        return self.raw.text(28)

    @cached_property
    def constant(self) -> int | None:
        """The value of a constant that is one integer; None for another op."""
        literal = self.raw.message(8)
        found = [value for kind in (3, 4, 5, 6, 7) for value in literal.integers(kind)]
        return found[0] if self.opcode == "constant" and len(found) == 1 else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """What the compiler says beside of it (backend_config)."""
        text = self.raw.text(43)
        return json.loads(text) if text.startswith("{") else {}

    @cached_property
    def frontend(self) -> dict[str, str]:
        """Attributes that came with the program."""
        return {each.text(1): each.text(2) for each in self.raw.message(68).messages(1)}

    @property
    def groups(self) -> int | None:
        """How many devices are in a group of a collective; None when it names no groups. Raises ValueError for groups
        that are spelled as axes of a mesh."""
        if self.raw.raw(98):
            raise ValueError(f"the groups of {self.name} are spelled in a way that is not known here")
        listed = self.raw.messages(49) or self.raw.message(87).messages(1)
        if listed:
            return max(len(each.integers(1)) for each in listed)
        return self.raw.message(92).integer(2) or None  # the devices in order, reshaped to groups

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(source, target) of a permutation."""
        return [(each.integer(1), each.integer(2)) for each in self.raw.messages(52)]

    @property
    def cycles(self) -> int | None:
        """Cycles by the compiler's own estimate, better where it simulated the code; None where it gives none."""
        found = self._simulated or self.config.get("window_config", {}).get("estimated_cycles")
        return None if found is None else int(found)

    @property
    def simulated(self) -> bool:
        """Whether `cycles` come from a simulation of the code that was emitted."""
        return self._simulated is not None

    @property
    def _simulated(self) -> str | None:
        return self.config.get("bundle_analysis_data", {}).get("estimated_cycles")


@dataclass(frozen=True)
class Computation:
    """Ops in the order that they start."""

    name: str
    ops: list[Op] = field(default_factory=list[Op])

    @cached_property
    def by_name(self) -> dict[str, Op]:
        """The ops by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def users(self) -> dict[str, list[tuple[Op, int]]]:
        """For each op those that take its result, and as which operand."""
        found: dict[str, list[tuple[Op, int]]] = {}
        for op in self.ops:
            for place, operand in enumerate(op.operands):
                found.setdefault(operand, []).append((op, place))
        return found

    @cached_property
    def root(self) -> Op:
        """The op whose result is the computation's."""
        return next(op for op in self.ops if op.root)


@dataclass(frozen=True)
class Hlo:
    """A module: its computations by name, the entry, results that lie in a parameter's memory, and source lines."""

    name: str
    computations: dict[str, Computation]
    entry: Computation
    aliases: dict[tuple[int, ...], int]
    frames: Sequence[Line]

    def line(self, op: Op) -> Line | None:
        """The line that an op's metadata names."""
        told = op.raw.message(7)
        backward = told.text(2).split("/")[0] == "backward"
        file, line, frame = told.text(3), told.integer(4), told.integer(15)
        if file and line:
            # MLIR takes a line of the module's own text, of the file "-", for a location that is not given.
            return None if file == "-" else Line(file, line, backward)
        if not 0 < frame <= len(self.frames):
            return None
        found = self.frames[frame - 1]
        return None if found.file == "-" else Line(found.file, found.line, backward)

    def named(self, op: Op) -> str | None:
        """The name that an op's metadata gives it: of a parameter that of its argument."""
        return op.raw.message(7).text(2) or None

    def inside(self, op: Op) -> list[Op]:
        """The op, and all ops of the computations that it calls, fusions inside of fusions included."""
        found, pending, seen = [op], list(op.called), set(op.called)
        while pending:
            for each in self.computations[pending.pop()].ops:
                found.append(each)
                fresh = [name for name in each.called if name not in seen]
                seen.update(fresh)
                pending += fresh
        return found


def read_hlo(data: bytes) -> Hlo:
    """The module of an HloProto. Raises ValueError when the bytes are none, or do not fit together."""
    module = Message(data).message(1) if data else Message(b"")
    computations = module.messages(3)
    if not computations:
        raise ValueError("expected an HloProto with a module, which has computations")
    names = {each.integer(5): each.text(1) for each in computations}
    if len(set(names.values())) != len(computations):
        raise ValueError("expected an HLO module whose computations have a name each")
    order = {each.integer(1): each.message(2).integers(1) for each in module.message(7).messages(1)}
    read = {names[each.integer(5)]: _computation(each, names, order.get(each.integer(5))) for each in computations}
    entry = names.get(module.integer(6))
    if entry is None or module.integer(6) not in order:
        raise ValueError("expected an HLO module that is scheduled, its entry computation too")
    aliases = {each.integers(1): each.integer(2) for each in module.message(8).messages(1)}
    return Hlo(module.text(1), read, read[entry], aliases, _frames(module.message(17)))


def _computation(raw: Message, names: dict[int, str], order: Sequence[int] | None) -> Computation:
    """The ops of a HloComputationProto, in the order of the schedule where there is one."""
    name, ops = raw.text(1), {each.integer(35): each for each in raw.messages(2)}
    if order is not None and sorted(order) != sorted(ops):
        raise ValueError(f"the schedule of {name} has {len(order):,} ops, and the computation {len(ops):,} others")
    called = {number: each.text(1) for number, each in ops.items()}
    root = raw.integer(6)
    if root not in ops:
        raise ValueError(f"the computation {name} has no result")
    made = [
        Op(
            called[number],
            ops[number].text(2),
            tuple(_named(ops[number].integers(36), called, name)),
            tuple(_named(ops[number].integers(38), names, name)),
            ops[number],
            number == root,
        )
        for number in (ops if order is None else order)
    ]
    return Computation(name, made)


def _named(numbers: Iterable[int], names: dict[int, str], where: str) -> list[str]:
    try:
        return [names[number] for number in numbers]
    except KeyError as error:
        raise ValueError(f"an op of {where} refers to number {error}, which the module does not have") from None


def _frames(index: Message) -> list[Line]:
    """The innermost line of each stack frame, which are numbered from 1 on."""
    files = index.texts(1)
    places = [(each.integer(1), each.integer(3)) for each in index.messages(3)]
    found: list[Line] = []
    for frame in index.messages(4):
        file, line = places[frame.integer(1) - 1]
        found.append(Line(files[file - 1] if 0 < file <= len(files) else "?", line))
    return found
