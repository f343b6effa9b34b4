"""The parent's side of a process that runs checks: it answers, exits by itself, or is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from lazytpu.doctor.outcome import CRASHED, HUNG, WORKS
from lazytpu.runtime.children import search_path

STARTING = 120.0
"Seconds that a process may take to start: it imports torch and jax."
GRACE = 1.0
"Seconds past its limit in which a hung check can print its stack."
LEAVING = 20.0
"Seconds that a process may take to release its device."
READ, KEPT = 1 << 20, 4000
"""For the output of a check's process: the bytes searched for a reason, and the characters kept."""


class Process:
    """A process that runs checks, including those of `modules`. `environment` is its whole environment."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
        read, write = os.pipe()
        self._answers = read
        self._received = b""
        self._begun = False
        self._heard = 0  # bytes of its output that belong to earlier answers
        self._child = subprocess.Popen(
            [sys.executable, "-m", "lazytpu.doctor.child", str(write), *modules],
            env={**environment, "PYTHONPATH": search_path()},
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            pass_fds=(write,),
            start_new_session=True,  # so that its own children can be killed with it
        )
        os.close(write)

    def ask(self, key: str, limit: float) -> dict[str, Any]:
        """Run a check and return its "status", "detail", "said" and "seconds". After a crash or a timeout the process
        is no longer `alive`."""
        if not self._begun:  # do not charge the check for imports
            started = self._answer(STARTING)
            if started["status"] != WORKS:
                return started
            self._begun = True
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died while idle: `_answer` reports it
            self._child.stdin.write(f"{json.dumps([key, limit])}\n".encode())
            self._child.stdin.flush()
        return self._answer(limit)

    def _answer(self, limit: float) -> dict[str, Any]:
        """Return its next answer, or a description of how it ended."""
        start = monotonic()
        line = self._line(start + limit + GRACE)
        size = self._size()  # a check flushes its output before it answers
        first, self._heard = max(self._heard, size - READ), size
        said = os.pread(self._said.fileno(), READ, first).decode(errors="replace")
        if line:
            return {**json.loads(line), "said": said[-KEPT:]}
        self.end()
        status, how = (HUNG, f"killed after {limit:.0f} s") if line is None else (CRASHED, f"its process {self._how()}")
        return {"status": status, "detail": how + _reason(said), "said": said[-KEPT:], "seconds": monotonic() - start}

    @property
    def alive(self) -> bool:
        """Whether it can run checks."""
        return not self._said.closed

    def leave(self) -> None:
        """Close its input, so that it releases its device and exits; kill it if that takes too long."""
        if self.alive:
            assert self._child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(LEAVING)
            self.end()

    def end(self) -> None:
        """Kill the process and all its children."""
        if not self.alive:
            return
        if self._child.returncode is None:  # otherwise its pid may have been reused
            with contextlib.suppress(ProcessLookupError):  # the whole group is gone
                os.killpg(self._child.pid, signal.SIGKILL)
        # A process in an uninterruptible wait for a device dies later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(LEAVING)
        self._said.close()
        os.close(self._answers)

    def _size(self) -> int:
        return os.fstat(self._said.fileno()).st_size

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line of the answers; empty if the process has ended, None if none came in time."""
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - monotonic(), 0))
            if not ready:
                return None
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                return b""
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _how(self) -> str:
        """Describe how it ended."""
        status = self._child.returncode
        if status is None:
            return "cannot be killed"
        return f"ended with {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


# Lines with the reason for which a process ends: Python's faulthandler and exceptions, glog of XLA and libtpu, the C++
# runtime.
_TELLING = re.compile(r"Check failed|^F\d{4} |Fatal Python error|^\w+(\.\w+)*(Error|Exception)\b|terminate called")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


def _reason(said: str) -> str:
    """Return the reason for which the process ended, according to its output: the last two matching lines, else its
    last lines, and its place in Python."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)][-2:]
    frames = [match for match in map(_FRAME.match, said.splitlines()) if match]
    where = [f"at {f['function']} ({os.path.basename(f['file'])}:{f['line']})" for f in frames[:1]]
    words = [*(telling or ([] if frames else lines[-2:])), *where]
    return "".join(f"; {word[:300]}" for word in words)
