"""Values whose array is larger than they are: each dimension has the size of a bucket, of which the first elements are
*true* and the rest is *padding*, which holds anything.

Nothing sees padding by accident: whoever asks such a buffer for its `array` gets one of the true sizes, made on the
device, and `fetch` gives the true elements. Only a program that is made for padding takes the other array (`padded`).
Both are valid until the value is overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.client import Array
from lazytpu.runtime.repadding import Memory, cut, moved, poisoned

POISON = False
"""Whether all padding is overwritten with NaN, the largest integer, or True: for tests. A result that depends on it is
then wrong for sure, and not just where memory happens to hold something."""

_counting = threading.Lock()


def _nothing() -> None:
    pass


class PaddedBuffer(Buffer):
    """A value of the sizes `shape` (in memory order) whose array `padded` has those of `memory`, each at least as
    large. Its `array` is a copy of the true sizes, made when somebody asks; `nbytes` counts what is there of both.

    `ranges` are the dimensions that somebody said will vary, by number in memory order: the least and the greatest
    size, None for no limit. `in_vain` is called where data of the host that was padded is made an array of the true
    sizes.
    """

    __slots__ = ("_exact", "in_vain", "memory", "padded", "ranges", "shape")

    def __init__(
        self,
        padded: Array,
        nbytes: int,
        memory: Memory,
        shape: tuple[int, ...],
        origin: Origin | None = None,
        outcome: Any = None,
        ranges: Mapping[int, tuple[int, int | None]] = MappingProxyType({}),
    ) -> None:
        self._exact: Any = None
        self.nbytes = 0
        self.origin = origin
        self.outcome = outcome
        self.pins = 0
        self.error = None
        self.count(nbytes)
        self.memory = memory
        self.shape = shape
        self.ranges = ranges
        self.in_vain: Callable[[], None] = _nothing
        self.padded = poisoned(padded, memory, shape) if POISON else padded

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An array of the true sizes; None once the value was released."""
        exact, padded = self._exact, self.padded
        if exact is not None or padded is None:
            return exact
        if padded.shape == self.shape:
            return padded
        if self.outcome is None:  # data of the host, which waits for nothing: a program of each size would cost more
            self.in_vain()
            MEMORY.note_execution(0, self.true_nbytes, 0)
            made = client.to_device(self.fetch())
        else:
            made = moved(padded, self.memory, self.shape, self.shape)
        with _counting:
            if self._exact is None:
                self._exact = made
                self.count(self.true_nbytes)
            return self._exact

    @property
    def existing(self) -> Any:
        """An array of this value that exists already; None once the value was released."""
        return self._exact if self.padded is None else self.padded

    @property
    def copied(self) -> bool:
        """Whether there are two arrays of this value."""
        return self.padded is not None and self._exact is not None

    def arrays(self) -> list[tuple[str, Array]]:
        """The arrays that are there, by the names of their attributes."""
        both = ("padded", self.padded), ("_exact", self._exact)
        return [(name, array) for name, array in both if array is not None and not client.is_deleted(array)]

    @property
    def true_nbytes(self) -> int:
        """The bytes of the true elements."""
        held = self.existing
        return 0 if held is None else held.dtype.itemsize * prod(self.shape)

    @property
    def padding(self) -> int:
        """The bytes of the padding."""
        return 0 if self.padded is None else self.padded.nbytes - self.true_nbytes

    def fetch(self) -> np.ndarray[Any, Any]:
        if self._exact is not None:
            return client.to_host(self._exact, copy=False)
        return cut(client.to_host(self.padded, copy=False), self.memory, self.shape)

    def gone(self) -> bool:
        return self.existing is None

    def taken(self) -> bool:
        """As any buffer's. Of two arrays, the one that the run took is dropped, and the other is the value."""
        if self.copied:
            if client.is_deleted(self._exact):
                self.count(-self.true_nbytes)
                self._exact = None
            elif client.is_deleted(self.padded):
                self.count(self.true_nbytes - self.nbytes)
                self.padded = None
        return self.existing is not None and client.is_deleted(self.existing)

    def release(self) -> None:
        self.count(-self.nbytes)
        self.padded = self._exact = None
