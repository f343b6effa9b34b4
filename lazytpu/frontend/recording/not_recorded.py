"""How an op leaves its kernel unrecorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazytpu.frontend.lines import call_site
from lazytpu.trace.recorder import Recorder


class NotRecorded(Exception):
    """In place of the record that would come next, `instead` is called: with the recorder rolled back, and its lock
    released. Then the op is recorded `again`, unless its result is that of `instead`. Users never see this."""

    def __init__(self, instead: Callable[[], Any], again: bool = False):
        super().__init__(instead)
        self.instead = instead
        self.again = again


def cut_first(r: Recorder, cause: str) -> NotRecorded:
    """The trace has to be cut for this `cause`, and the op recorded again."""
    return NotRecorded(lambda: r.cut(cause, call_site()), again=True)
