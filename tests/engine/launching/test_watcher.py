"""The thread that measures runs."""

from __future__ import annotations

import time

import pytest

from lazytpu.engine.launching.watcher import Watched, Watcher


@pytest.mark.parametrize("started", [False, True])
def test_runs_are_measured_after_the_thread_ended(started: bool) -> None:
    """As by an event that is recorded at the end of the process, which would otherwise be waited for forever."""
    watcher, measured = Watcher(), list[tuple[float, float]]()
    watched = Watched((), 1.0, (), lambda start, end: measured.append((start, end)))
    if started:
        watcher.watch(watched)
        watcher.drain()
    assert watcher.close(time.monotonic() + 10)
    watcher.watch(watched)
    watcher.drain()
    assert len(measured) == 1 + started
    assert all(1.0 == start <= end for start, end in measured)
