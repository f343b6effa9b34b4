"""`check` as harness.check, but put off: all checks of a test are compiled as one program when its function returns.

A compilation takes 70 ms whatever it compiles; conftest.py calls `flush` at the end of every test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from batch import Importer
from harness import TOLERANCE, clone
from torch._ops import OpOverload

from lazytpu.aten import dtypes, registry
from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.expansion import tensors
from lazytpu.aten.expansion import values as flat_values
from lazytpu.aten.schema import bind, signature
from lazytpu.ir.types import dtype_of, shape_of


@dataclass
class Pending:
    """One check: its results are those of the program from `start` on, with those of its bounds checks after them."""

    text: str
    expected: list[torch.Tensor]
    start: int
    messages: list[str]
    rtol: float | None
    atol: float | None

    def compare(self, made: list[torch.Tensor]) -> None:
        """Assert that the results are the CPU's."""
        stop = self.start + len(self.expected)
        for ok, message in zip(made[stop:], self.messages, strict=False):
            assert bool(ok), f"{self.text}: {message}"
        for got, want in zip(made[self.start : stop], self.expected, strict=True):
            assert got.dtype == want.dtype, f"{self.text}: {got.dtype}, expected {want.dtype}"
            rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
            rtol, atol = rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol
            try:
                torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{self.text}\ngot {got}\nexpected {want}\n{error}") from None


class Program(Importer):
    """The checks of one test."""

    def __init__(self, numbers: bool):
        super().__init__(numbers)
        self.pending: list[Pending] = []

    def expect(self, op: OpOverload, bound: dict[str, Any], fresh: list[torch.Tensor], pending: Pending) -> None:
        """Import one call, whose new results must look like `fresh`."""
        operands = {name: self._operand(op, name, value) for name, value in bound.items()}
        metas = [(dtypes.name(t.dtype), tuple(t.shape)) for t in fresh]
        before = len(self.b.checks)
        outcome = evaluate(self.b, op, operands, metas)
        returned = flat_values(outcome.returns)
        got = [(dtype_of(v), shape_of(v)) for v in returned]
        assert got == metas, f"{pending.text}: {got}, expected {metas}"
        pending.start = len(self.results)
        self.results += returned + flat_values(list(outcome.writes.values()))
        pending.messages = [message for _, message, *_ in self.b.checks[before:]]
        self.results += [ok for ok, *_ in self.b.checks[before:]]
        self.pending.append(pending)


_programs: dict[bool, Program] = {}


def check(op: OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert, at the end of the test, that `op` gives on lazytpu what it gives on torch's CPU: values, dtypes, shapes;
    numbers static and run-time alike."""
    s, bound = signature(op), bind(op, args, kwargs)
    copies = [clone(a) for a in args], {k: clone(v) for k, v in kwargs.items()}
    reference = op(*copies[0], **copies[1])
    after = bind(op, *copies)
    returned = list(reference or ()) if len(s.returned) != 1 else [reference]
    fresh = tensors([r for r, alias in zip(returned, s.returned, strict=True) if alias is None])
    expected = fresh + tensors([after[name] for name in s.written])
    shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, torch.Tensor) else repr(a) for a in args]
    text = f"{op}({', '.join(shown)}, {kwargs})"
    found = registry.load().get(str(op))
    for numbers in (False, True) if found and found.numbers else (False,):
        program = _programs.setdefault(numbers, Program(numbers))
        program.expect(op, bound, fresh, Pending(text, expected, 0, [], rtol, atol))


def flush() -> None:
    """Compile and compare what the checks of this test put off."""
    programs = list(_programs.values())
    _programs.clear()
    for program in programs:
        made = program.run()
        for pending in program.pending:
            pending.compare(made)


def forget() -> None:
    """Drop what a failed test put off."""
    _programs.clear()
