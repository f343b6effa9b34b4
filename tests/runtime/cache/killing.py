"""A program that kills its own children while they write entries or hold a lock, and prints the remains as JSON.

It uses no device, so that its children may be forks.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lazytpu.runtime.cache.store import Store

KEYS = [f"{i:064x}" for i in range(4)]
PATIENCE = 30.0


def forked(work: Callable[[], object]) -> int:
    """Fork a child that runs `work` and does not return."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def payload(key: str) -> bytes:
    return bytes.fromhex(key) * 20_000  # 640 kB, so that the kill comes in the middle of the write


def write_for_ever(root: Path) -> None:
    store = Store(root, limit=5_000_000)
    while True:
        key = random.choice(KEYS)
        with store.locked("program", key):
            store.put("program", key, payload(key), {"name": key})


def while_writing(root: Path, times: int) -> dict[str, int]:
    temporary_files = entries = 0
    for i in range(times):
        child = forked(lambda: write_for_ever(root))
        deadline = time.monotonic() + PATIENCE
        while not any((root / "temporary").glob("*")) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(0.001 * (i % 7))
        kill(child)
        temporary_files += len(list((root / "temporary").iterdir()))
        store = Store(root, limit=5_000_000)
        for key in KEYS:
            entry = store.get("program", key)  # a damaged one would warn, and warnings are errors here
            entries += entry is not None
            assert entry is None or entry.payload == payload(key)
        with store.locked("program", KEYS[0]) as locked:
            assert locked, "the lock of a dead process is free"
    store = Store(root, limit=5_000_000)
    store.put("program", KEYS[0], payload(KEYS[0]), {})
    remaining_files = len([*(root / "temporary").iterdir(), *(root / "locks").iterdir()])
    counts = {"left": temporary_files, "found": entries, "rest": remaining_files}
    return {**counts, "damaged": len(store.verify()), "size": store.size()}


def while_locked(root: Path) -> dict[str, bool]:
    """A process waits for the holder of a lock, which is killed while a fork of it lives on."""
    ready, alive, forever = os.pipe(), os.pipe(), 3600

    def live_on() -> None:
        os.close(alive[1])
        os.read(alive[0], 1)  # until the calling process ends

    def hold() -> None:
        with Store(root).locked("program", KEYS[0]) as locked:
            forked(live_on)
            os.write(ready[1], b"1" if locked else b"0")
            time.sleep(forever)

    child = forked(hold)
    first = os.read(ready[0], 1) == b"1"
    killer = forked(lambda: (time.sleep(0.2), os.kill(child, signal.SIGKILL)))
    with Store(root, patience=PATIENCE).locked("program", KEYS[0]) as locked:
        taken = locked
    os.waitpid(killer, 0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return {"first": first, "taken": taken, "gone": not list((root / "locks").iterdir())}


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    print(json.dumps(while_writing(folder, 30) if sys.argv[1] == "writing" else while_locked(folder)))
