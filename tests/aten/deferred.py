"""Deferred `harness.check`: the checks of a test file are compiled together after its last test.

A compilation has a fixed cost of 20 ms, and most checks are of one small op. conftest.py calls `finish` at the end of
every file. Its errors name the op, its arguments and the test, although pytest reports them for the last test.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.aten import dtypes, registry
from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.expansion import tensors
from lazytpu.aten.expansion import values as flat_values
from lazytpu.aten.schema import bind, signature
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.runtime.errors import CompileError
from tests.aten.batch import Importer
from tests.aten.harness import TOLERANCE, clone, on_cpu
from tests.aten.harness import check as check_now

MOST = 100
"""The number of checks in one program: XLA's compile time grows more than linearly for thousands of results."""


@dataclass
class Pending:
    """One check: its results begin at `start` in the program's, followed by the results of its bounds checks."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: list[torch.Tensor]
    rtol: float | None
    atol: float | None
    test: str
    start: int = 0
    messages: list[str] | None = None

    def compare(self, results: list[torch.Tensor]) -> None:
        """Assert that the results equal the CPU's."""
        stop = self.start + len(self.expected)
        for ok, message in zip(results[stop:], self.messages or (), strict=False):
            assert bool(ok), f"{self}: {message}"
        for got, want in zip(results[self.start : stop], self.expected, strict=True):
            assert got.dtype == want.dtype, f"{self}: {got.dtype}, expected {want.dtype}"
            rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
            rtol, atol = rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol
            try:
                torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{self}\ngot {got}\nexpected {want}\n{error}") from None

    def __str__(self) -> str:
        shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, torch.Tensor) else repr(a) for a in self.args]
        return f"{self.test}: {self.op}({', '.join(shown)}, {self.kwargs})"


class Program(Importer):
    """Checks that are compiled together."""

    def __init__(self, numbers: bool):
        super().__init__(numbers)
        self.pending: list[Pending] = []

    def expect(self, bound: dict[str, Any], fresh: list[torch.Tensor], pending: Pending) -> None:
        """Import one call, whose new results must have the types of `fresh`."""
        operands = {name: self._operand(pending.op, name, value) for name, value in bound.items()}
        metas = [(dtypes.name(t.dtype), tuple(t.shape)) for t in fresh]
        before = len(self.b.checks)
        outcome = evaluate(self.b, pending.op, operands, metas)
        returned = flat_values(outcome.returns)
        got = [(dtype_of(v), shape_of(v)) for v in returned]
        assert got == metas, f"{pending}: {got}, expected {metas}"
        pending.start = len(self.results)
        self.results += returned + flat_values(list(outcome.writes.values()))
        pending.messages = [message for _, message, *_ in self.b.checks[before:]]
        self.results += [ok for ok, *_ in self.b.checks[before:]]
        self.pending.append(pending)

    def wrong(self) -> list[str]:
        """Compile and run all checks; return the failures."""
        wrong: list[str] = []
        try:
            results = self.run()
        except (CompileError, ValueError) as error:
            return [*_alone(self.pending), f"{len(self.pending)} checks in one program: {error}"]
        for pending in self.pending:
            try:
                pending.compare(results)
            except AssertionError as error:
                wrong.append(str(error))
        return wrong


def _alone(checks: list[Pending]) -> list[str]:
    """Return the checks that do not compile separately, after they did not compile together."""
    wrong: list[str] = []
    for pending in checks:
        try:
            check_now(pending.op, *pending.args, rtol=pending.rtol, atol=pending.atol, **pending.kwargs)
        except (AssertionError, CompileError, ValueError) as error:
            wrong.append(f"{pending}: {error}")
    return wrong


_programs: dict[bool, Program] = {}
_wrong: list[str] = []


def check(op: OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert, at the end of the file, that lazytpu's result of `op` equals torch's on the CPU: values, dtypes, shapes;
    with static and with run-time numbers."""
    s, bound = signature(op), bind(op, args, kwargs)
    copies = tuple(clone(a) for a in args), {k: clone(v) for k, v in kwargs.items()}
    untouched = tuple(clone(a) for a in args), {k: clone(v) for k, v in kwargs.items()}
    reference = on_cpu(op, *copies[0], **copies[1])
    after = bind(op, *copies)
    returned = list(reference or ()) if len(s.returned) != 1 else [reference]
    fresh = tensors([r for r, alias in zip(returned, s.returned, strict=True) if alias is None])
    expected = fresh + tensors([after[name] for name in s.written])
    test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
    rule = registry.load().get(str(op))
    for numbers in (False, True) if rule and (rule.numbers or rule.specialized) else (False,):
        program = _programs.setdefault(numbers, Program(numbers))
        program.expect(bound, fresh, Pending(op, *untouched, expected, rtol, atol, test))
        if len(program.pending) >= MOST:
            _wrong.extend(_programs.pop(numbers).wrong())


def finish() -> None:
    """Compile and compare the deferred checks of this file."""
    programs, wrong = list(_programs.values()), list(_wrong)
    _programs.clear()
    _wrong.clear()
    for program in programs:
        wrong += program.wrong()
    assert not wrong, f"{len(wrong)} checks failed\n" + "\n\n".join(wrong)
