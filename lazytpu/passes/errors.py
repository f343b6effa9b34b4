"""How a failing pass says which op it failed at."""

from __future__ import annotations

from typing import TypeVar

from xdsl.ir import Operation

from lazytpu.ir import location

_Error = TypeVar("_Error", bound=Exception)


class PassError(RuntimeError):
    """A pass failed, or left a module that does not verify."""


def describe(op: Operation) -> str:
    """One line: "at the op `%0 = lazytpu.add ...` from train.py:41"."""
    if op.regions:
        shown = op.name
    else:
        results = ", ".join(str(t) for t in op.result_types)
        operands = ", ".join(str(value.type) for value in op.operands)
        settings = ", ".join(f"{name} = {value}" for name, value in (op.properties | op.attributes).items())
        shown = f"{op.name} ({operands}) {{{settings}}} -> {results}"
    line = location.describe(op.location)
    return f"at the op `{shown}`" + (f" from {line}" if line else "")


def note(error: Exception, op: Operation) -> None:
    """Say on an error which op was being rewritten."""
    error.add_note(describe(op))


def own_notes(error: Exception) -> list[str]:
    """What `note` left on an error."""
    return [text for text in getattr(error, "__notes__", ()) if text.startswith("at the op ")]


def without_notes(error: _Error) -> _Error:
    """xDSL notes the whole module on an error; a step of 5,000 ops would bury the message."""
    if hasattr(error, "__notes__"):
        del error.__notes__
    return error
