"""Reading scheduled HLO, as the TPU compiler prints it: computations, ops in their order, lines, estimated cycles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from lazytpu.inspect.tpu.arrays import Array, arrays

_NAME = r"[\w.\-]+"
_COMPUTATION = re.compile(rf"^(ENTRY )?%?({_NAME}) .*\{{$")
_OP = re.compile(rf"^\s+(ROOT )?%({_NAME}) = (.*)$")
_REFERENCE = re.compile(rf"%({_NAME})")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FILE = re.compile(r'source_file="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"source_line=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_TABLE_ROW = re.compile(r"^(\d+) (.*)$")
_CYCLES = re.compile(r'window_config":\{.*?"estimated_cycles":"(\d+)"')
_SIMULATED = re.compile(r'bundle_analysis_data":\{"estimated_cycles":"(\d+)"')
_ALIAS = re.compile(r"\{([\d,\s]*)\}: \((\d+), \{[\d,\s]*\}")


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
    """One instruction: its name, the text of its type, its opcode, the names of its operands, and all that follows."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    root: bool = False

    @cached_property
    def results(self) -> tuple[Array, ...]:
        """Its result, or the parts of it."""
        return arrays(self.type)

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations it runs: of a fusion, a loop, a reduction."""
        words = self.attributes.split(", metadata=")[0].split(", backend_config=")[0]
        found: list[str] = []
        for key in re.finditer(r"\b(?:calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|%[\w.\-]+)", words):
            found += _REFERENCE.findall(key[1])
        return tuple(found)

    def attribute(self, name: str) -> str | None:
        """The text of an attribute: `kLoop` of `kind=kLoop`, `{0,1}` of `dimensions={0,1}`."""
        found = re.search(rf"\b{name}=(\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\[[^ ]*|\"[^\"]*\"|[^,\s]+)", self.attributes)
        return found[1] if found else None

    @cached_property
    def cycles(self) -> int | None:
        """Cycles by the compiler's own estimate, better where it simulated the code; None where it gives none."""
        found = _SIMULATED.search(self.attributes) or _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def simulated(self) -> bool:
        """Whether `cycles` come from a simulation of the code that was emitted."""
        return _SIMULATED.search(self.attributes) is not None


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

    @property
    def root(self) -> Op:
        """The op whose result is the computation's."""
        return next((op for op in self.ops if op.root), self.ops[-1])


@dataclass(frozen=True)
class Hlo:
    """A module: its computations by name, the entry, results that lie in a parameter's memory, and source lines."""

    name: str
    computations: dict[str, Computation]
    entry: Computation
    aliases: dict[tuple[int, ...], int]
    frames: dict[int, Line]

    def line(self, op: Op) -> Line | None:
        """The line that an op's metadata names."""
        backward = (self.named(op) or "").split("/")[0] == "backward"
        # MLIR takes a line of the module's own text, of the file "-", for a location that is not given.
        file, line, frame = _FILE.search(op.attributes), _LINE.search(op.attributes), _FRAME.search(op.attributes)
        if file and line:
            return None if file[1] == "-" else Line(file[1], int(line[1]), backward)
        found = self.frames.get(int(frame[1])) if frame else None
        return None if found is None else Line(found.file, found.line, backward)

    def named(self, op: Op) -> str | None:
        """The name that an op's metadata gives it: of a parameter that of its argument."""
        found = _OP_NAME.search(op.attributes)
        return found[1] if found else None

    def inside(self, op: Op) -> list[Op]:
        """The op, and all ops of the computations that it calls, fusions inside of fusions included."""
        found, pending, seen = [op], list(op.called), set(op.called)
        while pending:
            computation = self.computations.get(pending.pop())
            for each in computation.ops if computation else ():
                found.append(each)
                fresh = [name for name in each.called if name not in seen]
                seen.update(fresh)
                pending += fresh
        return found


def parse_hlo(text: str) -> Hlo:
    """Raises ValueError when the text is no HLO module."""
    if not text.startswith("HloModule "):
        raise ValueError(f"expected HLO text, which begins with HloModule; got {text[:60]!r}")
    header = text.split("\n", 1)[0]
    computations: dict[str, Computation] = {}
    tables: dict[str, dict[int, str]] = {}
    entry: Computation | None = None
    current: Computation | None = None
    table: dict[int, str] | None = None
    for line in text.splitlines()[1:]:
        if current is not None:
            if line.startswith("}"):
                current = None
            else:
                found = _OP.match(line)
                if found:
                    current.ops.append(_op(found[2], found[3], root=bool(found[1])))
            continue
        found = _COMPUTATION.match(line)
        if found and "->" in line:
            current = computations[found[2]] = Computation(found[2])
            entry = current if found[1] else entry
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables[line] = {}
        elif table is not None and (row := _TABLE_ROW.match(line)):
            table[int(row[1])] = row[2]
    if entry is None or not entry.ops:
        raise ValueError("expected HLO text with an entry computation")
    return Hlo(header.split()[1].rstrip(","), computations, entry, _aliases(header), _frames(tables))


def _op(name: str, text: str, *, root: bool) -> Op:
    """`TYPE opcode(operands), attributes`."""
    kind, rest = _cut(text) if text.startswith("(") else text.split(" ", 1)
    opcode, _, rest = rest.strip().partition("(")
    arguments, attributes = _cut(f"({rest}")
    operands = () if opcode in ("parameter", "constant") else tuple(_REFERENCE.findall(arguments))
    return Op(name, kind, opcode, operands, arguments[1:-1], attributes.lstrip(", "), root)


def _cut(text: str) -> tuple[str, str]:
    """A text that begins with a parenthesis, behind the one that closes it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[: place + 1], text[place + 1 :]
    return text, ""


def _aliases(header: str) -> dict[tuple[int, ...], int]:
    """Index of a result -> the parameter whose memory it takes."""
    told = header.partition("input_output_alias={ ")[2].partition(" }, ")[0]
    return {tuple(int(i) for i in index.split(",") if i.strip()): int(number) for index, number in _ALIAS.findall(told)}


def _frames(tables: dict[str, dict[int, str]]) -> dict[int, Line]:
    """The innermost line of each stack frame."""
    names = {number: row.strip('"') for number, row in tables.get("FileNames", {}).items()}
    places: dict[int, Line] = {}
    for number, row in tables.get("FileLocations", {}).items():
        name, line = re.search(r"file_name_id=(\d+)", row), re.search(r"\bline=(\d+)", row)
        if name and line:
            places[number] = Line(names.get(int(name[1]), "?"), int(line[1]))
    frames: dict[int, Line] = {}
    for number, row in tables.get("StackFrames", {}).items():
        place = re.search(r"file_location_id=(\d+)", row)
        if place and int(place[1]) in places:
            frames[number] = places[int(place[1])]
    return frames
