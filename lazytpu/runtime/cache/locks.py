"""Mutual exclusion of processes: file locks, which the kernel releases when a process dies.

`flock` belongs to one opening of a file, so two threads of a process exclude each other as two processes do.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

# Pauses between two attempts to take a held lock, in seconds: the first, the factor, the longest.
FIRST_PAUSE, FACTOR, LAST_PAUSE = 0.001, 1.5, 0.05
STOPPED_PATIENCE = 2.0  # seconds after which to give up on a holder that has stopped (SIGSTOP)

_held: set[int] = set()  # file descriptors of the locks that this process holds


def acquire(path: Path, patience: float, enough: Callable[[], bool] = lambda: False, note: str = "") -> int | None:
    """Take the lock on the file `path`, which exists only while the lock is held. Write the holder and the `note` into
    it.

    Returns the file descriptor for `release`. Returns None without the lock if `enough()` became true meanwhile, after
    `patience` seconds, or if the holder has stopped.

    Raises:
        OSError: the file cannot be created, or its file system has no locks.
    """
    deadline = time.monotonic() + patience
    pause, moving = FIRST_PAUSE, time.monotonic()
    while True:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if try_lock(opened):
                if _is(path, opened):
                    os.ftruncate(opened, 0)  # the file of a dead holder names that one
                    os.pwrite(opened, f"process {os.getpid()} on {socket.gethostname()}\n{note}".encode(), 0)
                    _held.add(opened)
                    return opened
                # The last holder has removed the file in between. Open a new one.
                os.close(opened)
                continue
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)
        if not has_stopped(path):
            moving = time.monotonic()
        if enough() or time.monotonic() >= min(deadline, moving + STOPPED_PATIENCE):
            return None
        time.sleep(pause)
        pause = min(LAST_PAUSE, FACTOR * pause)


def release(path: Path, opened: int) -> None:
    """Release the lock. Raises OSError when the file cannot be removed; the lock is free all the same."""
    _held.discard(opened)
    try:
        path.unlink(missing_ok=True)  # before unlocking: afterwards it may be another holder's
    finally:
        # Closing alone does not unlock when the process has forked meanwhile: the child has the file open as well.
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def remove_if_free(path: Path) -> None:
    """Remove a file whose holder is dead. Raises OSError."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, IsADirectoryError):  # a folder does not belong to the cache
        return
    try:
        if try_lock(opened) and _is(path, opened):
            path.unlink()
    finally:
        os.close(opened)


def holder(path: Path) -> str:
    """Return the holder of a lock, for messages: "process 4711 on host"."""
    try:
        return path.read_text().partition("\n")[0] or "a process"
    except OSError:
        return "a process that is done by now"


def has_stopped(path: Path) -> bool:
    """Whether the holder of a lock is a stopped process of this machine, which may never continue."""
    words = holder(path).split()
    if len(words) != 4 or words[3] != socket.gethostname():
        return False
    try:
        return Path(f"/proc/{words[1]}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def is_held(opened: int) -> bool:
    """Whether the lock of an open file is held. A process that tries to take it at this moment has to try again."""
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(opened, fcntl.LOCK_UN)
    return False


def try_lock(opened: int) -> bool:
    """Lock an open file without waiting, until it is closed. Return False if it is held elsewhere."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(path: Path, opened: int) -> bool:
    """Whether the file at `path` is the opened one."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(opened)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _in_child() -> None:
    """Close the parent's locks in a forked child, so that they are free when the parent dies."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_in_child)
