"""Packs of run-time numbers on their way to the device. A small one that occurs again is sent once."""

from __future__ import annotations

from typing import Any

import numpy as np

from lazytpu.engine.memory.alive import Amount
from lazytpu.runtime.xla import client

SMALL = 64  # bytes: the packs of one op, or of a few, often constants of the script
MOST = 1024  # packs that are kept


class Packs:
    """Arrays of small packs by their bits. A program never writes to its packs, so any number of runs may share one.

    An upload costs the host 11 us, finding an array 0.5.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, bytes], Any] = {}

    def kept(self) -> Amount:
        """How many are kept, and their bytes."""
        arrays = list(self._arrays.values())
        return Amount(sum(array.nbytes for array in arrays), len(arrays))

    def forget(self) -> None:
        """Send all of them anew: the device is another one."""
        self._arrays.clear()

    def upload(self, pack: np.ndarray[Any, Any]) -> Any:
        """The device array of a 1-D pack."""
        if pack.nbytes > SMALL:
            return client.to_device(pack)
        key = (pack.dtype.char, pack.tobytes())
        array = self._arrays.get(key)
        if array is None:
            if len(self._arrays) >= MOST:
                self._arrays.clear()  # numbers that vary at every step never occur again
            array = self._arrays[key] = client.to_device(pack)
        return array
