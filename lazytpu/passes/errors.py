"""Errors of passes, which name the op that a pass failed at."""

from __future__ import annotations

from typing import TypeVar

from xdsl.ir import Operation

from lazytpu.ir import location

_Error = TypeVar("_Error", bound=Exception)


class PassError(RuntimeError):
    """A pass failed, or left a module that does not verify.

    `by` names the pass that has a bug. It is None if a pass refuses the module, or if the module was invalid before.
    """

    def __init__(self, message: str, by: str | None = None):
        super().__init__(message)
        self.by = by


class Unsupported(ValueError):
    """A pass refuses a module. This is no bug of the pass; the message gives the reason."""


def describe(op: Operation) -> str:
    """One line: "at the op `%0 = lazytpu.add ...` from train.py:41"."""
    if op.regions and not op.results:  # a function or a module
        text = op.name
    else:
        results = ", ".join(str(t) for t in op.result_types)
        operands = ", ".join(str(value.type) for value in op.operands)
        attributes = ", ".join(f"{name} = {value}" for name, value in (op.properties | op.attributes).items())
        text = f"{op.name} ({operands}) {{{attributes}}} -> {results}"
    line = location.describe(op.location)
    return f"at the op `{text}`" + (f" from {line}" if line else "")


def note_op(error: Exception, op: Operation) -> None:
    """Add a note to an error: the op that was being rewritten."""
    error.add_note(describe(op))


def op_notes(error: Exception) -> list[str]:
    """The notes that `note_op` added to an error."""
    return [text for text in getattr(error, "__notes__", ()) if text.startswith("at the op ")]


def without_notes(error: _Error) -> _Error:
    """The error without its notes: xDSL adds the whole module as one, and 5,000 ops would bury the message."""
    if hasattr(error, "__notes__"):
        del error.__notes__
    return error
