"""The measured compile speed of this machine: for each environment, the ratio of measured to estimated CPU time. All
processes share one small file in the cache folder; a damaged file counts as empty."""

from __future__ import annotations

import json
import threading
from math import exp, log
from typing import Any

from lazytpu.runtime.cache import folder
from lazytpu.runtime.cache.fingerprint import environment_digest
from lazytpu.runtime.cache.store import Store, store

VERSION = 1  # of the file: raised when its fields change meaning
MAX_ENVIRONMENTS = 32  # the newest are kept
NEW_WEIGHT = 0.3  # the weight of a new measurement: compilations differ from their estimates by a factor of two
MAX_RATIO = 100.0  # a ratio beyond this, or below its inverse, means that the machine slept
MIN_CHANGE = 0.05  # the least change of log(ratio) that is worth a write


class Speed:
    """The ratio of this process's environment. Threads may share it."""

    def __init__(self) -> None:
        self._store: Store | None = None  # the store that `_ratio` was read from
        self._ratio = self._written = 1.0
        self._lock = threading.Lock()

    def ratio(self) -> float:
        """Return the ratio, 1 where nothing was measured."""
        with self._lock:
            return self._known()

    def measured(self, ratio: float) -> None:
        """Note that a compilation took `ratio` times its estimate."""
        if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            return
        with self._lock:
            self._ratio = exp((1 - NEW_WEIGHT) * log(self._known()) + NEW_WEIGHT * log(ratio))
            if abs(log(self._ratio / self._written)) > MIN_CHANGE:
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
    """Return the ratios of all environments; none if the file is damaged."""
    data = store().read_beside(folder.SPEEDS)
    try:
        document: Any = json.loads(data) if data else {}
        if document.get("version") != VERSION:
            return {}
        ratios = {str(name): float(ratio) for name, ratio in document["ratios"].items()}
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        return {}
    return ratios if all(1 / MAX_RATIO <= ratio <= MAX_RATIO for ratio in ratios.values()) else {}


def _write(ratio: float) -> None:
    ratios = {name: value for name, value in _read().items() if name != _name()}
    kept = [*ratios.items()][-(MAX_ENVIRONMENTS - 1) :]
    text = json.dumps({"version": VERSION, "ratios": dict([*kept, (_name(), round(ratio, 4))])})
    store().write_beside(folder.SPEEDS, text.encode())
