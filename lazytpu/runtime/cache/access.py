"""Access of a store to its folder. A fault is reported once, as a warning, and never raised."""

from __future__ import annotations

import inspect
import threading
import warnings
from pathlib import Path

from lazytpu.runtime.cache import folder, ledger


class CacheWarning(UserWarning):
    """The cache on disk, or an entry of it, could not be used. lazytpu compiles the program instead."""


def warn(message: str) -> None:
    """Warn about the cache, at the first source line of the call stack outside lazytpu."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("lazytpu."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"lazytpu: {message}", CacheWarning, stacklevel=level)


def said(error: OSError) -> str:
    """Return the message of an OSError, with the file that it names."""
    if error.strerror is None:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


class Access:
    """The folder `root` of one store. With None, it is neither readable nor writable."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._refused = False  # the folder is unsafe, and not checked again
        self._failed = False  # a write has failed
        self._swept = False
        self._lock = threading.Lock()

    def readable(self) -> bool:
        """Whether the folder exists and is safe. Checked at each call (5 us), since the folder may come and go."""
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
        """Whether entries can be written. Creates the folder and the missing folders in it."""
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
        """Stop writing in this process after a failed write, with one warning. On a full disk, each later write would
        serialize a program in vain."""
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            warn(f"programs are cached in memory only from here on: cannot write to {self.root}: {said(error)}")
