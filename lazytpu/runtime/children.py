"""Child processes in Python, which must import the same modules as this process, and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, NoReturn

SECONDS_TO_END = 5
"""The time in which a child can clean up before it is killed."""
LAUNCHER = """
import ctypes, os, signal, sys
parent, python, *arguments = sys.argv[1:]
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGTERM)
if os.getppid() == int(parent):
    os.execv(python, [python, *arguments])
"""
"""Starts Python in its own place, after it has asked Linux for a signal at the end of its parent (PR_SET_PDEATHSIG), so
that a child ends even if its parent was killed. Other systems have no such signal."""


def search_path() -> str:
    """Return `sys.path` as PYTHONPATH for a child. An empty entry becomes the current folder unless that was
    deleted."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    return os.pathsep.join(filter(None, [entry or here for entry in sys.path]))


def run_python(
    arguments: Sequence[str], environment: Mapping[str, str], output: int | IO[bytes], errors: IO[bytes]
) -> int:
    """Run Python without input and return its exit status. If this process ends before, or an exception ends the wait,
    Python and its own children end too. Children that it leaves behind when it ends by itself run on."""
    command = [sys.executable, "-ISc", LAUNCHER, str(os.getpid()), sys.executable, *arguments]
    nothing = subprocess.DEVNULL
    # In a group of its own, so that its children can be ended with it. Ctrl-C on a terminal then reaches this process
    # alone, which ends the group.
    child = subprocess.Popen(command, env=environment, stdin=nothing, stdout=output, stderr=errors, process_group=0)
    try:
        return child.wait()
    except BaseException:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(SECONDS_TO_END)
        raise


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Raise SystemExit in the body at SIGTERM and SIGHUP, whose default is to end the process at once: files and
    children are cleaned up as after Ctrl-C. Signals that are ignored or handled, and other threads, are left alone."""
    main = threading.current_thread() is threading.main_thread()
    default = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in default:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # as shells report a signal
