"""Errors of a cut for the user: the op, the source line, and the values that stay valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from lazytpu.aten.errors import Check, ImportFailure
from lazytpu.engine.errors.undo import Lost, undo
from lazytpu.runtime.errors import CompileError, RunError, is_full
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Value

_VALID = "Tensors made before this trace are as they were before it and the device stays usable; its results are lost."
_KEPT = "It ran op by op instead: all tensors are valid, and the device stays usable."
_INTERRUPTED = "lazytpu: the program that computes this value was interrupted while it was launched"
_TAKEN = "So are the contents of {} tensors whose memory had been donated to the run that failed: reading one says so."


def failed_cut(
    error: BaseException,
    trace: Trace,
    held: list[tuple[int, Value]],
    out_of_memory: Callable[[RunError | CompileError], BaseException],
    poison: Callable[[Lost, BaseException], None],
) -> BaseException:
    """Return the error to raise for a failed cut, after restoring its live values `held` to their contents before it.

    `out_of_memory` constructs the full error of a run or compilation that exhausted the device's memory. `poison` makes
    reads of lost values raise the error.

    Frames of the error must keep no device memory alive (R4). So the trace is emptied, and errors of the device lose
    their frames.
    """
    pending = any(value.buffer is None for _, value in held)
    lost = undo(trace, [(slot, value) for slot, value in held if value.buffer is None])
    explained = explain(error, trace.state, pending, len(lost.inputs), out_of_memory)
    poison(lost, explained if isinstance(explained, Exception) else RuntimeError(_INTERRUPTED))
    for buffer in trace.buffers:
        if buffer is not None and buffer is not EMPTY:  # these may stand for the contents before an earlier failed cut
            buffer.pins -= 1
    for references in (trace.buffers, trace.values, trace.numbers, held):
        references.clear()
    if isinstance(explained, CompileError | RunError):
        drop_frames(explained)
        drop_frames(error)
    return explained


def explain(
    error: BaseException,
    state: State,
    lost: bool,
    donated: int,
    out_of_memory: Callable[[RunError | CompileError], BaseException],
) -> BaseException:
    """Return the error to raise for a failed cut, with op and source line. The type is kept where the user may catch
    it.

    `lost` says whether results of the trace have no value, and `donated` is the number of inputs whose memory is gone.
    """
    if isinstance(error, RunError | CompileError) and is_full(error.reason):
        error = out_of_memory(error)
    valid = _VALID if lost else _KEPT
    if donated:
        valid = f"{valid} {_TAKEN.format(donated)}"
    from lazytpu.passes.errors import PassError  # imports xDSL, which a process without compilations never loads

    if isinstance(error, ImportFailure):
        return not_imported(error, f"\n{valid}")
    if isinstance(error, PassError | CompileError | RunError):
        error.add_note(f"In the trace {_span(state)}. {valid}")
        return error
    return error


def not_imported(error: ImportFailure, valid: str = "") -> RuntimeError:
    """Return the error to raise for a record that could not be imported; `valid` describes the remaining values."""
    from lazytpu.ir.types import TooLarge

    kind = torch.OutOfMemoryError if isinstance(error.__cause__, TooLarge) else RuntimeError
    explained = kind(f"lazytpu could not import {error}{valid}")
    explained.__cause__ = error
    return explained


CHECKED: dict[str, type[Exception]] = {
    error.__name__.lstrip("_"): error
    for error in (IndexError, RuntimeError, ValueError, ZeroDivisionError, LinAlgError)
}


def failed_check(check: Check) -> Exception:
    """Return the exception of a failed value check."""
    return CHECKED[check.error](f"{check.message} ({check.op} at {check.line})")


def drop_frames(error: BaseException | None) -> None:
    """Drop the frames of an error and its causes, since they hold buffers (R4)."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _span(state: State) -> str:
    """Return the ops between which a trace lies."""
    records = state.records()
    first, last = records[0], records[-1]
    return f"of {len(records)} ops from {_where(first)} to {_where(last)}"


def _where(record: Any) -> str:
    return f"{record.op} ({record.line})"
