"""How fast this machine compiles, as measured: for each environment the ratio of the CPU time it took to what was
estimated. One small file in the folder of the cache, which all processes share; a damaged one counts as empty.
"""

from __future__ import annotations

import json
import threading
from math import exp, log
from typing import Any

from lazytpu.runtime.cache import folder
from lazytpu.runtime.cache.fingerprint import environment_digest
from lazytpu.runtime.cache.store import Store, store

VERSION = 1
MOST = 32  # environments that are kept, the newest
SHARE = 0.3  # of a new measurement in the ratio: compilations differ from their estimates by a factor of two
LARGEST = 100.0  # a ratio beyond this, or its inverse, is a machine that slept
CHANGE = 0.05  # that is worth writing to disk


class Speed:
    """The ratio of this process's environment. Threads may share it."""

    def __init__(self) -> None:
        self._store: Store | None = None  # that the ratio is of
        self._ratio = self._written = 1.0
        self._lock = threading.Lock()

    def ratio(self) -> float:
        """The ratio, 1 where nothing was measured."""
        with self._lock:
            return self._known()

    def measured(self, ratio: float) -> None:
        """A compilation took `ratio` times its estimate."""
        if not 1 / LARGEST <= ratio <= LARGEST:
            return
        with self._lock:
            self._ratio = exp((1 - SHARE) * log(self._known()) + SHARE * log(ratio))
            if abs(log(self._ratio / self._written)) > CHANGE:
                _write(self._ratio)
                self._written = self._ratio

    def _known(self) -> float:
        if self._store is not store():
            self._store = store()
            self._ratio = self._written = _read().get(_name(), 1.0)
        return self._ratio


def _name() -> str:
    return environment_digest()[:16]


def _read() -> dict[str, float]:
    """The ratios of all environments; none where the file is damaged."""
    data = store().read_beside(folder.SPEEDS)
    try:
        found: Any = json.loads(data) if data else {}
        if found.get("version") != VERSION:
            return {}
        ratios = {str(name): float(ratio) for name, ratio in found["ratios"].items()}
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        return {}
    return ratios if all(1 / LARGEST <= ratio <= LARGEST for ratio in ratios.values()) else {}


def _write(ratio: float) -> None:
    others = {name: known for name, known in _read().items() if name != _name()}
    kept = [*others.items()][-(MOST - 1) :]
    text = json.dumps({"version": VERSION, "ratios": dict([*kept, (_name(), round(ratio, 4))])})
    store().write_beside(folder.SPEEDS, text.encode())
