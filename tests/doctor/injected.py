"""Checks with every possible outcome."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from lazytpu.doctor.check import check


@check(device=False)
def works() -> str:
    """The check works."""
    print("said on the way")
    return "as it should"


@check(device=False)
def refuses() -> str:
    """The feature does not exist here."""
    raise NotImplementedError("no such thing\nhere")


@check(device=False)
def raises() -> str:
    """Any exception is reported in one line."""
    raise ValueError("1 is\nnot 2")


@check(device=False)
def leaves() -> str:
    """A library that exits Python does not end the report."""
    sys.exit("leaving")


@check(device=False)
def aborts() -> str:
    """A crash is reported with the last output of the process, and the next check runs."""
    print("F0000 00:00:00.0 1 shape.h:843] Check failed: buffer != nullptr", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 6)
    return "alive"


@check(device=False, limit=3)
def hangs() -> str:
    """A check that hangs is killed, with its child processes."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"started {child.pid}", flush=True)
    time.sleep(600)
    return "late"
