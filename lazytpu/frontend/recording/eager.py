"""Strict and debug mode: each record is a trace of its own, and is cut immediately."""

from __future__ import annotations

from lazytpu.frontend import activation
from lazytpu.frontend.recording.nan_check import Watch
from lazytpu.options import options
from lazytpu.trace.recorder import Recorder


def run_now(recorder: Recorder) -> None:
    """Run a record in eager mode; its kernel calls this. Strict mode launches it; debug mode also waits for it.

    In debug mode, errors that depend on values are raised at the op's own call, such as an index out of range, and
    FloatingPointError with `options.nan_check`.
    """
    if recorder.mode == "strict":
        recorder.cut()
        return
    state = recorder.state
    watch = Watch(recorder, state.recorded[0]) if options.nan_check and state.depth == 1 else None
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
