"""Preloading: this run loads, on a thread, the programs that the last run of the same command used first.

XLA loads a program in 0.2 s of CPU per MiB of its code, and does not need the interpreter lock for it. A command is a
script with its arguments. For each command there is a list of keys, an entry of kind "start". The list decides nothing:
a program is used only if the trace's own key names it.

A list may be outdated, for example since the script has changed. Then at most `MAX_PRELOADED_BYTES` are loaded in vain,
on a core that was idle. The first program that has to be compiled drops the preloaded ones.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

from lazytpu.runtime.cache.fingerprint import environment_digest
from lazytpu.runtime.cache.store import Store

KIND = "start"
MAX_PROGRAMS = 16  # of a list
MAX_PRELOADED_BYTES = 64 << 20  # of the entries in a list: about 12 s of loading
PATIENCE = 15.0  # seconds to wait for a load in progress

Loaded = TypeVar("Loaded")


class Foreseen(Generic[Loaded]):
    """The list of `command` in `store`. `load` returns the program of a key, or None when it cannot be loaded."""

    def __init__(self, store: Store, command: str, load: Callable[[str], Loaded | None]) -> None:
        self.store = store
        self.command = command
        self.load = load
        self._lock = threading.Lock()
        self._listed = self._read()
        self._used: dict[str, None] = {}
        self._left = MAX_PRELOADED_BYTES
        self._loading: dict[str, Future[Loaded | None]] = {key: Future() for key in self._listed}
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Load the listed programs on a thread, in the order of their first use."""
        work = list(self._loading.items())
        thread = threading.Thread(target=self._work, args=(work,), name="lazytpu loader", daemon=True)
        if work:
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads
                return
            self._thread = thread

    def claim(self, key: str) -> Loaded | None:
        """Return the preloaded program of a key, once, after waiting for a load in progress. None when its load has not
        begun."""
        with self._lock:
            loading = self._loading.pop(key, None)
        return None if loading is None or loading.cancel() else loading.result()

    def used(self, key: str, size: int) -> None:
        """Note that a program whose entry has `size` bytes was loaded or compiled. Rewrite the list if it lacks the
        key."""
        with self._lock:
            if key in self._used or len(self._used) == MAX_PROGRAMS or size > self._left:
                return
            self._used[key] = None
            self._left -= size
            if key in self._listed:
                return
            self._listed = list(self._used)
            about = {"name": Path(sys.argv[0]).name}
            self.store.put(KIND, self.command, json.dumps(self._listed).encode(), about)

    def missed(self) -> None:
        """Stop preloading and drop the preloaded programs: a program has to be compiled, so this run differs from the
        last."""
        with self._lock:
            dropped = list(self._loading.values())
            self._loading.clear()
        for loading in dropped:
            loading.cancel()

    def again(self) -> None:
        """Start over for a new client: the preloaded programs belong to the old one."""
        with self._lock:
            unused = [key for key in self._loading if key not in self._used]
        self.close(time.monotonic() + PATIENCE)
        self._loading = {key: Future() for key in unused}
        self.begin()

    def close(self, end: float) -> bool:
        """Stop preloading, and wait for the load in progress until `end` (time.monotonic()). Return whether the thread
        has ended."""
        self.missed()
        if self._thread is not None:
            self._thread.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        return self._thread is None or not self._thread.is_alive()

    def _work(self, work: list[tuple[str, Future[Loaded | None]]]) -> None:
        for key, loading in work:
            if loading.set_running_or_notify_cancel():
                try:
                    loading.set_result(self.load(key))
                except BaseException as error:  # noqa: BLE001  (raised where the program is claimed)
                    loading.set_exception(error)

    def _read(self) -> list[str]:
        entry = self.store.get(KIND, self.command) if self.store.has(KIND, self.command) else None
        try:
            return [] if entry is None else _checked(json.loads(entry.payload))
        except ValueError as error:
            self.store.reject(KIND, self.command, str(error))
            return []


def _checked(keys: Any) -> list[str]:
    if not isinstance(keys, list) or len(keys) > MAX_PROGRAMS or not all(isinstance(key, str) for key in keys):
        raise ValueError(f"it is no list of at most {MAX_PROGRAMS} keys")
    return [key for key in dict.fromkeys(keys) if len(key) == 64 and set(key) <= set("0123456789abcdef")]


def command() -> str | None:
    """Return the digest of this process's script, arguments and environment. None for a prompt, for `python -c`, and
    for a child of multiprocessing, whose command line is its parent's."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or multiprocessing.parent_process() is not None:
        return None
    called = (environment_digest(), str(Path(script).resolve()), *sys.argv[1:])
    return hashlib.sha256(json.dumps(called).encode()).hexdigest()


def spare_core() -> bool:
    """Whether this process may run on two cores."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1
