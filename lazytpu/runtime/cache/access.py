"""Whether a store may read and write its folder; what is wrong with it is told once, and never raised."""

from __future__ import annotations

import inspect
import threading
import warnings
from pathlib import Path

from lazytpu.runtime.cache import folder, ledger


class CacheWarning(UserWarning):
    """The cache on disk could not be used, or an entry of it; what was to be read is compiled instead."""


def warn(message: str) -> None:
    """Tell the user what happened to the cache, at the line outside lazytpu that came to it."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("lazytpu."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"lazytpu: {message}", CacheWarning, stacklevel=level)


def said(error: OSError) -> str:
    """What an error says, with the file if it names one."""
    if error.strerror is None:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


class Access:
    """The folder `root` of one store; None is a folder that is never there."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._refused = False  # not safe: it is not looked at any more
        self._failed = False  # a write failed
        self._swept = False
        self._lock = threading.Lock()

    def readable(self) -> bool:
        """Whether there is a folder, and it is safe. Looked at each time (5 us), since it may go and come."""
        if self.root is None or self._refused:
            return False
        try:
            mended = folder.check(self.root)
        except FileNotFoundError:
            return False
        except OSError as error:
            with self._lock:
                first, self._refused = not self._refused, True
            if first:
                warn(f"programs are cached in memory only: {said(error)}")
            return False
        if mended:
            warn(mended)
        return True

    def writable(self) -> bool:
        """Whether entries can be written, having made what is missing of the folder."""
        if self.root is None or self._refused or self._failed:
            return False
        try:
            folder.make(self.root)
            if not self.readable():
                return False
            folder.fill(self.root)
            if not self._swept:
                ledger.sweep(self.root)
                self._swept = True
        except OSError as error:
            self.give_up(error)
        return not self._failed

    def give_up(self, error: OSError) -> None:
        """A write failed: there are no more in this process, since on a full disk each would be tried in vain after
        the work of serializing."""
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            warn(f"programs are cached in memory only from here on: cannot write to {self.root}: {said(error)}")
