"""The programs that the last run of a command used first: this run loads them on a thread, while it records.

XLA loads a program in 0.2 s of CPU per MiB of its code, and needs no lock of Python for it. A command is a script with
its arguments. A list of keys, an entry of kind "start", is kept for each. It decides nothing: a program is used if the
trace's own key names it, whoever loaded it. Of a list that is wrong, because the script has changed, say, at most
`BYTES` are loaded for nothing, on a core that had nothing else to do; what was loaded is dropped at the first program
that has to be compiled.
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
MOST = 16  # programs of a list
BYTES = 64 << 20  # of their entries: about 12 s of loading
PATIENCE = 15.0  # seconds to wait for one that is being loaded

Loaded = TypeVar("Loaded")


class Foreseen(Generic[Loaded]):
    """The list of `command` in `store`. `load` loads the program of a key, and gives None when it cannot."""

    def __init__(self, store: Store, command: str, load: Callable[[str], Loaded | None]) -> None:
        self.store = store
        self.command = command
        self.load = load
        self._lock = threading.Lock()
        self._listed = self._read()
        self._used: dict[str, None] = {}
        self._left = BYTES
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
        """What `load` gave for a key, once; waits while it is being loaded. None when nobody has begun to."""
        with self._lock:
            loading = self._loading.pop(key, None)
        return None if loading is None or loading.cancel() else loading.result()

    def used(self, key: str, size: int) -> None:
        """A program whose entry has so many bytes was loaded or compiled: a list without it is written anew."""
        with self._lock:
            if key in self._used or len(self._used) == MOST or size > self._left:
                return
            self._used[key] = None
            self._left -= size
            if key in self._listed:
                return
            self._listed = list(self._used)
            about = {"name": Path(sys.argv[0]).name}
            self.store.put(KIND, self.command, json.dumps(self._listed).encode(), about)

    def missed(self) -> None:
        """A program has to be compiled: this run is another than the last. Load no more, and keep nothing."""
        with self._lock:
            dropped = list(self._loading.values())
            self._loading.clear()
        for loading in dropped:
            loading.cancel()

    def again(self) -> None:
        """Begin anew: what was loaded is for a client that is used no more."""
        with self._lock:
            unused = [key for key in self._loading if key not in self._used]
        self.close(time.monotonic() + PATIENCE)
        self._loading = {key: Future() for key in unused}
        self.begin()

    def close(self, end: float) -> bool:
        """Load no more, and wait for what is being loaded until `end` (time.monotonic()); whether that is done."""
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
    if not isinstance(keys, list) or len(keys) > MOST or not all(isinstance(key, str) for key in keys):
        raise ValueError(f"it is no list of at most {MOST} keys")
    return [key for key in dict.fromkeys(keys) if len(key) == 64 and set(key) <= set("0123456789abcdef")]


def command() -> str | None:
    """The digest of this process's script, its arguments and its environment. None for a prompt, for `python -c`, and
    for a child of multiprocessing, which is called as its parent is and does something else."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or multiprocessing.parent_process() is not None:
        return None
    called = (environment_digest(), str(Path(script).resolve()), *sys.argv[1:])
    return hashlib.sha256(json.dumps(called).encode()).hexdigest()


def spare_core() -> bool:
    """Whether this process may run on two cores."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1
