"""A module of the dialect as a flat list of ops, in execution order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import ParseError

from lazytpu.inspection.step.work import estimate_of, flops, members_of, passes_of
from lazytpu.inspection.textual import tensor_bytes, without_locations
from lazytpu.inspection.tpu.kernels import Estimate
from lazytpu.ir.control import RegionOp, WhileOp, YieldOp
from lazytpu.ir.location import describe, scope_at
from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.patterns.trips import trips


@dataclass(frozen=True, slots=True)
class StepArgument:
    """An argument of the step. `update` is the index of the result that reuses its memory, or None."""

    name: str
    type: str
    bytes: int
    update: int | None


@dataclass(slots=True)
class StepOp:
    """An op of the step.

    - `operands`: the numbers of the ops that produce them. Argument i is `~i`, which is negative.
    - `line`: "train.py:41", empty if unknown. `module`: "blocks.2.attn", empty outside of modules.
    - `cluster`: the call that contains the op, such as "cluster_3 #2"; empty outside calls.
    - `bytes`: the size of its results. `flops`: its arithmetic operations.
    - `passes`: for a product, the number of passes of the matrix unit over its operands; else 0.
    - `members`: for a collective, the number of devices; else 0.
    - `estimate`: the cost of an attention op's kernels; None for other ops.
    - `regions`: those of a branch or a loop, whose arguments are its operands (but for the condition of a branch).
    - `trips`: the iterations of a loop; None if they are not known, when `flops` and times are those of one.
    """

    number: int
    kind: str
    type: str
    line: str
    backward: bool
    module: str
    operands: tuple[int, ...]
    bytes: int
    flops: float
    passes: int
    members: int
    cluster: str
    text: str
    estimate: Estimate | None = None
    users: list[int] = field(default_factory=list[int])
    regions: tuple[StepProgram, ...] = ()
    trips: int | None = None

    @property
    def place(self) -> str:
        """Its line as shown to users: "train.py:41 (backward)"."""
        return f"{self.line} (backward)" if self.backward else self.line


@dataclass(frozen=True)
class StepProgram:
    """A program: arguments, ops in order, and the ops (or arguments, as `~i`) that are its results."""

    name: str
    arguments: Sequence[StepArgument]
    ops: Sequence[StepOp]
    results: tuple[int, ...]

    @cached_property
    def returned(self) -> frozenset[int]:
        """The numbers of ops whose value is a result."""
        return frozenset(number for number in self.results if number >= 0)

    @property
    def all_ops(self) -> Iterator[StepOp]:
        """The ops of the program and of all nested regions."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.all_ops

    @property
    def clusters(self) -> list[str]:
        """The calls of clusters, in order."""
        return list(dict.fromkeys(op.cluster for op in self.ops if op.cluster))


def read(text: str, name: str = "step") -> StepProgram:
    """Return the step in a module's text, with the functions that `@main` calls inlined. Raises ValueError if it is not
    a module of the dialect, or has no function `@main`."""
    try:
        module = parse_module(text, name)
    except ParseError as error:
        reason = "it is StableHLO" if "stablehlo." in text else str(error).strip().splitlines()[-1]
        raise ValueError(
            f"{name} cannot be read as a module of the lazytpu dialect ({reason}); LAZYTPU_DUMP writes these as "
            "NNN-name.lazytpu.mlir and NNN-name.imported.mlir"
        ) from error
    functions = {function.sym_name.data: function for function in module.ops if isinstance(function, FuncOp)}
    main = functions.get("main")
    if main is None:
        raise ValueError(f"{name} has no function @main; it has {', '.join(functions) or 'none'}")
    attributes = [dict(entry.data) for entry in main.arg_attrs or ()] or [{} for _ in main.args]
    return _Reader(functions, _lines(module)).step(main.body.block, attributes, name)


def _lines(module: ModuleOp) -> dict[Operation, str]:
    """Return the first line of each op's text; the text is in the order of a walk."""
    ops = [op for op in module.walk() if not isinstance(op, ModuleOp | FuncOp)]
    text = [line.strip() for line in without_locations(print_module(module)) if line.startswith("    ")]
    return dict(zip(ops, (line for line in text if not line.startswith("}")), strict=True))


class _Reader:
    def __init__(self, functions: dict[str, FuncOp], lines: dict[Operation, str]):
        self.functions, self.lines = functions, lines
        self.ops: list[StepOp] = []
        self.calls = 0

    def step(self, block: Block, attributes: Sequence[dict[str, Attribute]], name: str) -> StepProgram:
        """Read the block of a function or region, whose arguments have these attributes."""
        arguments = [_argument(i, value.type, attributes[i]) for i, value in enumerate(block.args)]
        numbers: dict[SSAValue, int] = {a: ~i for i, a in enumerate(block.args)}
        results = self._walk(block, numbers, "")
        for op in self.ops:
            for operand in dict.fromkeys(op.operands):
                if operand >= 0:
                    self.ops[operand].users.append(op.number)
        return StepProgram(name, arguments, self.ops, tuple(results))

    def _walk(self, block: Block, numbers: dict[SSAValue, int], cluster: str) -> list[int]:
        """Add the ops of a block whose arguments have `numbers`. Returns the numbers of its results."""
        for op in block.ops:
            operands = tuple(numbers[value] for value in op.operands)
            if isinstance(op, ReturnOp | YieldOp):
                return list(operands)
            if isinstance(op, CallOp):
                results = self._call(op, operands)
            else:
                results = self._add(op, operands, cluster, self.lines[op])
            numbers.update(zip(op.results, results, strict=True))
        return []

    def _call(self, op: CallOp, operands: tuple[int, ...]) -> list[int]:
        """Add the ops of a called function. Returns the numbers of its results."""
        name = op.callee.string_value()
        callee = self.functions.get(name)
        if callee is None or callee.is_declaration:
            return self._add(op, operands, "", f"func.call @{name}")
        label, self.calls = f"{name} #{self.calls}", self.calls + 1
        return self._walk(callee.body.block, dict(zip(callee.args, operands, strict=True)), label)

    def _regions(self, op: Operation) -> tuple[StepProgram, ...]:
        if not isinstance(op, RegionOp):
            return ()
        blocks = [region.block for region in op.regions]
        return tuple(
            _Reader(self.functions, self.lines).step(block, [{} for _ in block.args], word)
            for word, block in zip(op.KEYWORDS, blocks, strict=True)
        )

    def _add(self, op: Operation, operands: tuple[int, ...], cluster: str, text: str) -> list[int]:
        """Add an op. Returns its number, once for each of its results."""
        place, scope = (describe(op.location) or "").removesuffix(" (backward)"), scope_at(op.location)
        types = ", ".join(map(str, op.result_types))
        self.ops.append(
            StepOp(
                number=len(self.ops),
                kind=op.name.removeprefix("lazytpu."),
                type=types,
                line=place,
                backward=scope.backward,
                module=scope.module,
                operands=operands,
                bytes=tensor_bytes(types),
                flops=flops(op),
                passes=passes_of(op),
                members=members_of(op),
                cluster=cluster,
                text=text,
                estimate=estimate_of(op),
                regions=self._regions(op),
                trips=trips(op) if isinstance(op, WhileOp) else None,
            )
        )
        return [len(self.ops) - 1] * len(op.results)


def _argument(index: int, kind: Attribute, attributes: dict[str, Attribute]) -> StepArgument:
    name, alias, text = attributes.get("lazytpu.name"), attributes.get("lazytpu.alias"), str(kind)
    shown = name.data if isinstance(name, StringAttr) else f"argument {index}"
    update = alias.value.data if isinstance(alias, IntegerAttr) else None
    return StepArgument(shown, text, tensor_bytes(text), update)
