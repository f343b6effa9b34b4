"""Strict and debug mode: each record is a trace of its own, cut as soon as it is made."""

from __future__ import annotations

from lazytpu.frontend import activation
from lazytpu.frontend.recording.nan_check import Watch
from lazytpu.options import options
from lazytpu.trace.recorder import Recorder


def run_now(recorder: Recorder) -> None:
    """Called by a kernel whose recorder is eager, after it made its record: strict mode launches it, debug mode waits.

    Raises in debug mode what only values decide, such as an index out of range, at the op's own call, and with
    `options.nan_check` FloatingPointError.
    """
    if recorder.mode == "strict":
        recorder.cut()
        return
    state = recorder.state
    record = state.record
    watch = Watch(recorder, record) if options.nan_check and record is not None and state.depth == 1 else None
    engine = activation.engine()
    before = engine.launched()
    try:
        recorder.cut()
        engine.wait(before)
        if watch is not None:
            watch.check()
    finally:
        if watch is not None:
            watch.release()
