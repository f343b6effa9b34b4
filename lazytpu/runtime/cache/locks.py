"""One process at a time: locks on files, which the kernel takes from a process that dies.

`flock` holds for one opening of a file, so two threads of a process exclude each other as two processes do.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

# Pauses between two looks at a lock that is held, in seconds: from the first, by the factor, to the last.
FIRST_PAUSE, FACTOR, LAST_PAUSE = 0.001, 1.5, 0.05
STOPPED = 2.0  # seconds after which a holder that has stopped (SIGSTOP) is not waited for

_held: set[int] = set()  # the locks that this process has


def acquire(path: Path, patience: float, enough: Callable[[], bool] = lambda: False, note: str = "") -> int | None:
    """Takes the lock that the file `path` stands for; the file is there only while someone has it. It says who, and
    the `note`.

    Returns what `release` wants, or None without the lock: when `enough()` became true while someone else held it,
    when `patience` seconds were not enough, or when the one who holds it has stopped.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    deadline = time.monotonic() + patience
    pause, moving = FIRST_PAUSE, time.monotonic()
    while True:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if try_lock(opened):
                if _is(path, opened):
                    os.ftruncate(opened, 0)  # that of a dead process said something else
                    os.pwrite(opened, f"process {os.getpid()} on {socket.gethostname()}\n{note}".encode(), 0)
                    _held.add(opened)
                    return opened
                # The one who held it has removed the file in between: the next opening makes a new one.
                os.close(opened)
                continue
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)
        if not has_stopped(path):
            moving = time.monotonic()
        if enough() or time.monotonic() >= min(deadline, moving + STOPPED):
            return None
        time.sleep(pause)
        pause = min(LAST_PAUSE, FACTOR * pause)


def release(path: Path, opened: int) -> None:
    """Gives the lock back. Raises OSError when the file cannot be removed; the lock is free all the same."""
    _held.discard(opened)
    try:
        path.unlink(missing_ok=True)  # while it is locked, so that it is ours
    finally:
        # Closing alone is not enough when the process has forked meanwhile: the child has the file open as well.
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def remove_if_free(path: Path) -> None:
    """Removes a file whose locker is dead. Raises OSError."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, IsADirectoryError):  # a folder is not the cache's
        return
    try:
        if try_lock(opened) and _is(path, opened):
            path.unlink()
    finally:
        os.close(opened)


def holder(path: Path) -> str:
    """Who holds a lock, for messages: "process 4711 on host"."""
    try:
        return path.read_text().partition("\n")[0] or "a process"
    except OSError:
        return "a process that is done by now"


def has_stopped(path: Path) -> bool:
    """Whether who holds a lock is a process of this machine that has stopped: it may go on, or never."""
    words = holder(path).split()
    if len(words) != 4 or words[3] != socket.gethostname():
        return False
    try:
        return Path(f"/proc/{words[1]}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def is_held(opened: int) -> bool:
    """Whether someone has the lock of an open file. Who tries to take it at this moment has to try again."""
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(opened, fcntl.LOCK_UN)
    return False


def try_lock(opened: int) -> bool:
    """Locks an open file at once, until it is closed; False when someone else has it."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(path: Path, opened: int) -> bool:
    """Whether `path` still is the file that was opened."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(opened)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _in_child() -> None:
    """A forked child lets go of its parent's locks: they are free when that dies, although the child lives on."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_in_child)
