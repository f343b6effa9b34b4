"""How fast this machine compiles, as measured: for each environment and way of compiling, the ratio of what it took to
what was estimated. One small file in the folder of the cache, which all processes share; a damaged one counts as empty.
"""

from __future__ import annotations

import json
import threading
from math import exp, isfinite, log
from typing import Any

from lazytpu.runtime.cache import folder
from lazytpu.runtime.cache.fingerprint import environment_digest
from lazytpu.runtime.cache.store import Store, store

VERSION = 1
MOST = 32  # environments that are kept, the newest
SHARE = 0.3  # of a new measurement in the ratio: compilations differ from their estimates by a factor of two
LARGEST = 100.0  # a ratio beyond this, or its inverse, is a machine that slept
CHANGE = 0.05  # that is worth writing to disk


class Speeds:
    """The ratios of this process's environment, by way. Threads may share it."""

    def __init__(self) -> None:
        self._store: Store | None = None  # that the ratios are of
        self._ratios: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._lock = threading.Lock()

    def ratio(self, way: str, default: float) -> float:
        """The ratio, `default` where nothing was measured."""
        with self._lock:
            return self._known().get(way, default)

    def measured(self, way: str, ratio: float) -> None:
        """A compilation took `ratio` times its estimate."""
        if not 1 / LARGEST <= ratio <= LARGEST:
            return
        with self._lock:
            known = self._known()
            before = known.get(way)
            known[way] = ratio if before is None else exp((1 - SHARE) * log(before) + SHARE * log(ratio))
            written = self._written.get(way)
            if written is None or abs(log(known[way] / written)) > CHANGE:
                self._write(known)

    def _known(self) -> dict[str, float]:
        if self._store is not store():
            self._store = store()
            self._ratios = _read().get(_name(), {})
            self._written = dict(self._ratios)
        return self._ratios

    def _write(self, ratios: dict[str, float]) -> None:
        everyone = _read()
        everyone.pop(_name(), None)
        kept = [*everyone.items()][-(MOST - 1) :]
        known = {way: round(ratio, 4) for way, ratio in ratios.items()}
        text = json.dumps({"version": VERSION, "ratios": dict([*kept, (_name(), known)])})
        store().write_beside(folder.SPEEDS, text.encode())
        self._written = dict(ratios)


def _name() -> str:
    return environment_digest()[:16]


def _read() -> dict[str, dict[str, float]]:
    """The ratios of all environments; none where the file is damaged."""
    data = store().read_beside(folder.SPEEDS)
    try:
        found: Any = json.loads(data) if data else {}
        if found.get("version") != VERSION:
            return {}
        return {str(name): _checked(ratios) for name, ratios in found["ratios"].items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}


def _checked(ratios: dict[str, Any]) -> dict[str, float]:
    """Raises ValueError or TypeError for what no process has written."""
    known = {str(way): float(ratio) for way, ratio in ratios.items()}
    if not all(isfinite(ratio) and 1 / LARGEST <= ratio <= LARGEST for ratio in known.values()):
        raise ValueError(f"ratios of {sorted(known)} are out of range")
    return known
