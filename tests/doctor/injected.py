"""Checks that end in every way there is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from lazytpu.doctor.check import check


@check(device=False)
def works() -> str:
    """It works."""
    print("said on the way")
    return "as it should"


@check(device=False)
def refuses() -> str:
    """There is no such thing here."""
    raise NotImplementedError("no such thing\nhere")


@check(device=False)
def raises() -> str:
    """An exception, whatever it is, is a line."""
    raise ValueError("1 is\nnot 2")


@check(device=False)
def leaves() -> str:
    """A library that ends Python is no way out."""
    sys.exit("leaving")


@check(device=False)
def aborts() -> str:
    """A crash is a line, with what the process said of its end, and the next check runs."""
    print("F0000 00:00:00.0 1 shape.h:843] Check failed: buffer != nullptr", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 6)
    return "alive"


@check(device=False, limit=3)
def hangs() -> str:
    """One that hangs is ended, with what it started."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"started {child.pid}", flush=True)
    time.sleep(600)
    return "late"
