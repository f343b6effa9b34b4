"""Packs of run-time numbers on their way to the device; small ones that come again are sent once."""

from __future__ import annotations

from typing import Any

import numpy as np

from lazytpu.engine.memory.alive import Amount
from lazytpu.runtime import client

SMALL = 64  # bytes: the packs of one op, or of a few, which are often the constants of the script
KEPT = 1024


class Packs:
    """Arrays of small packs by their bits. A program never writes to its packs, so any number of runs may share one.

    An upload costs the host 11 us; finding one 0.5.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bytes], Any] = {}

    def kept(self) -> Amount:
        """How many are kept, and their bytes."""
        arrays = list(self._kept.values())
        return Amount(sum(array.nbytes for array in arrays), len(arrays))

    def upload(self, pack: np.ndarray[Any, Any]) -> Any:
        """The device array of a 1-D pack."""
        if pack.nbytes > SMALL:
            return client.to_device(pack)
        key = (pack.dtype.char, pack.tobytes())
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()  # numbers that vary at every step never come again
            found = self._kept[key] = client.to_device(pack)
        return found
