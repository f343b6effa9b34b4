"""Errors of a cut, told in the user's terms: which op, which line, what stays valid."""

from __future__ import annotations

from typing import Any

from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from lazytpu.aten.failures import Check, ImportFailure
from lazytpu.runtime.errors import CompileError, RunError
from lazytpu.trace.trie import State

_VALID = "Tensors made before this trace are unchanged and the device stays usable; the results of this trace are lost."
_KEPT = "It ran op by op instead: all tensors are valid, and the device stays usable."


def explain(error: BaseException, state: State, lost: bool) -> BaseException:
    """The error to raise for a failed cut: of the same type where the user may catch it, naming op and source line.
    `lost` says whether results of the trace have no value."""
    from lazytpu.passes.failure import PassError  # imports xDSL, which a process that compiles nothing does without

    if isinstance(error, ImportFailure):
        return RuntimeError(f"lazytpu could not import {error}\n{_VALID}")
    if isinstance(error, PassError | CompileError | RunError):
        note = f"In the trace {_span(state)}. {_VALID if lost else _KEPT}"
        error.add_note(note)
        return error
    return error


CHECKED: dict[str, type[Exception]] = {
    error.__name__.lstrip("_"): error
    for error in (IndexError, RuntimeError, ValueError, ZeroDivisionError, LinAlgError)
}


def failed_check(check: Check) -> Exception:
    """The exception of a check of values that failed."""
    return CHECKED[check.error](f"{check.message} ({check.op} at {check.line})")


def _span(state: State) -> str:
    records = state.records()
    first, last = records[0], records[-1]
    return f"of {len(records)} ops from {_where(first)} to {_where(last)}"


def _where(record: Any) -> str:
    return f"{record.op} ({record.line})"
