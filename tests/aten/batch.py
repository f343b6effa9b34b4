"""Checks many small ops in one program, as `harness.check` does for one op, with a single compilation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from lazytpu.aten import dtypes, registry
from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.scalars import KINDS, PACKS, PackPlan, Scalar
from lazytpu.aten.schema import bind, signature
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, shape_of, tensor_type
from lazytpu.lowering.emit import emit
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.aten.harness import QUICK, TOLERANCE, on_cpu, to_numpy, to_torch


@dataclass(frozen=True)
class Case:
    """One call of an op; `exact` requires the CPU's bits."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    exact: bool = False

    def reference(self) -> list[torch.Tensor] | None:
        """Return the CPU's results (of functional ops), or None if it refuses the dtypes, or returns a dtype that XLA
        lacks."""
        try:
            results = _tensors(on_cpu(self.op, *self.args, **self.kwargs))
        except (RuntimeError, TypeError):
            return None
        return results if all(t.dtype in dtypes.NAMES for t in results) else None

    def __str__(self) -> str:
        shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, torch.Tensor) else repr(a) for a in self.args]
        return f"{self.op}({', '.join(shown)}, {self.kwargs})"


class Importer:
    """A program to which cases are added."""

    def __init__(self, numbers: bool):
        self.numbers = numbers
        self.block = Block()
        self.b = Builder(self.block)
        self.plan = PackPlan()
        for pack in PACKS:
            self.plan.arguments[pack] = self.block.insert_arg(tensor_type(pack, (1 << 30,)), len(self.block.args))
        self.inputs: list[Any] = []
        self.values: list[Any] = []
        self.results: list[SSAValue] = []

    def add(self, case: Case, reference: list[torch.Tensor]) -> None:
        """Import one case."""
        bound = bind(case.op, case.args, case.kwargs)
        operands = {name: self._operand(case.op, name, value) for name, value in bound.items()}
        metas = [(dtypes.name(t.dtype), tuple(t.shape)) for t in reference]
        results = _values(evaluate(self.b, case.op, operands, metas).returns)
        got = [(dtype_of(v), shape_of(v)) for v in results]
        assert got == metas, f"{case}: {got}, expected {metas}"
        self.results += results

    def _operand(self, op: OpOverload, name: str, value: Any) -> Any:
        s, rule = signature(op), registry.load().get(str(op))
        if isinstance(value, torch.Tensor):
            self.inputs.append(to_numpy(value).copy())  # a test may write it before the program runs
            kind = tensor_type(dtypes.name(value.dtype), tuple(value.shape))
            return self.block.insert_arg(kind, len(self.block.args))
        if isinstance(value, list | tuple) and (name in s.tensors or name in s.numbers):
            return [self._operand(op, name, v) for v in value]
        varying = rule.numbers | rule.specialized if rule else frozenset()
        if type(value) in KINDS and (name in s.numbers or name in s.tensors or name in varying):
            if not (self.numbers and name in varying and (type(value) is not bool or name in rule.numbers)):
                return Scalar(KINDS[type(value)], value)
            self.values.append(value)
            return Scalar(KINDS[type(value)], None, self.plan, len(self.values) - 1)
        return value

    def run(self, options: Mapping[str, bool | int | str] = QUICK) -> list[torch.Tensor]:
        """Compile with these options of XLA, run, and fetch every result."""
        self.block.add_op(ReturnOp(*self.results))
        packer = self.plan.packer()
        packs = dict(zip(packer.packs, packer(self.values), strict=True))
        for pack, old in self.plan.arguments.items():
            if pack in packs:
                new = self.block.insert_arg(tensor_type(pack, packs[pack].shape), old.index)
                old.replace_all_uses_with(new)
            self.block.erase_arg(old)
        types = [a.type for a in self.block.args], [r.type for r in self.results]
        module = ModuleOp([FuncOp("main", types, Region(self.block))])
        module.verify()
        program = Program.compile(emit(module), options=options)
        arrays = [packs[pack] for pack in PACKS if pack in packs] + self.inputs
        buffers = program.run([client.to_device(a) for a in arrays])
        return [to_torch(client.to_host(m), dtype_of(r)) for m, r in zip(buffers, self.results, strict=True)]


def check_all(
    cases: Iterable[Case],
    numbers: tuple[bool, ...] = (False, True),
    options: Mapping[str, bool | int | str] = QUICK,
) -> int:
    """Assert that every case has the CPU's results. Return the number of cases that the CPU can compute.

    All run twice: with numbers as constants of the program, and as run-time numbers.
    """
    references = [(case, reference) for case in cases if (reference := case.reference()) is not None]
    for runtime in numbers:
        importer = Importer(runtime)
        for case, reference in references:
            importer.add(case, reference)
        got = iter(importer.run(options))
        for case, reference in references:
            for expected in reference:
                _compare(case, next(got), expected, runtime)
    return len(references)


def _compare(case: Case, got: torch.Tensor, expected: torch.Tensor, runtime: bool) -> None:
    rtol, atol = (0.0, 0.0) if case.exact else TOLERANCE.get(expected.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        wrong = ~torch.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
        pairs = list(zip(got[wrong].tolist()[:4], expected[wrong].tolist()[:4], strict=True))
        kind = "run-time" if runtime else "static"
        raise AssertionError(f"{case}, numbers {kind}: (got, expected) {pairs}\n{error}") from None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, list | tuple) else []


def _values(value: Any) -> list[SSAValue]:
    if isinstance(value, SSAValue):
        return [value]
    return [t for v in value for t in _values(v)] if isinstance(value, list | tuple) else []
