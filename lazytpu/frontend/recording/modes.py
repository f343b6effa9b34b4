"""Modes: when recorded ops run. The process has one (`lazytpu.options.mode`), and a thread may choose its own.

A thread's own mode is stored in its recorder, so autograd's threads work in the mode of the thread that called them.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from lazytpu.frontend.lines import call_site
from lazytpu.frontend.tensors import recorder, recorders
from lazytpu.options import watch
from lazytpu.settings import SETTINGS
from lazytpu.trace.recorder import Recorder


def install() -> None:
    """Let recorders follow the process's mode."""
    watch("mode", _follow)


def _follow() -> None:
    place = call_site()
    with ExitStack() as calls:  # a failing cut must not keep other recorders from following
        for follower in recorders():
            calls.callback(follower.choose_mode, follower.own_mode, place)


class Mode:
    """A context manager that sets the calling thread's mode. It is reentrant.

    If the mode changes, pending ops are cut at both ends.
    """

    def __init__(self, mode: str):
        self._mode: str = SETTINGS["mode"].parse(mode, "lazytpu.mode(...)")
        self._before: list[tuple[Recorder, str | None]] = []

    def __enter__(self) -> None:
        mine = recorder()
        before = mine.own_mode
        try:
            mine.choose_mode(self._mode, call_site())
        except BaseException:  # pending ops failed: the block is not entered
            mine.choose_mode(before)
            raise
        self._before.append((mine, before))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        mine, before = self._before.pop()
        mine.choose_mode(before, call_site())
