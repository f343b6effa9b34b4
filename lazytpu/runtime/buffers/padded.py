"""Values whose array is larger than they are: each dimension has the size of a bucket, of which the first elements are
*true* and the rest is *padding*, which holds anything.

Nothing sees padding by accident: whoever asks such a buffer for its `array` gets one of the true sizes, made on the
device, and `fetch` gives the true elements. Only a program that is made for padding takes the array that is `kept`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from lazytpu.runtime.buffers.buffer import MEMORY, Origin
from lazytpu.runtime.buffers.kept import KeptBuffer
from lazytpu.runtime.buffers.repadding import Memory, cut, moved, poisoned
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array

POISON = False
"""Whether all padding is overwritten with NaN, the largest integer, or True: for tests. A result that depends on it is
then wrong for sure, and not just where memory happens to hold something."""

_counting = threading.Lock()


def _nothing() -> None:
    pass


class PaddedBuffer(KeptBuffer):
    """A value of the sizes `shape` (in memory order) whose array `kept` has those of `memory`, each at least as large.
    Its `array` is a copy of the true sizes.

    `ranges` are the dimensions that somebody said will vary, by number in memory order: the least and the greatest
    size, None for no limit. `in_vain` is called where data of the host that was padded is made an array of the true
    sizes.
    """

    __slots__ = ("in_vain", "memory", "ranges", "shape")

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
        super().__init__(poisoned(padded, memory, shape) if POISON else padded, nbytes, origin, outcome)
        self.memory = memory
        self.shape = shape
        self.ranges = ranges
        self.in_vain: Callable[[], None] = _nothing

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An array of the true sizes; None once the value was released."""
        plain, kept = self.plain, self.kept
        if plain is not None or kept is None:
            return plain
        if kept.shape == self.shape:
            return kept
        if self.outcome is None:  # data of the host, which waits for nothing: a program of each size would cost more
            self.in_vain()
            MEMORY.note_execution(0, self.plain_nbytes, 0)
            made = client.to_device(self.fetch())
        else:
            made = moved(kept, self.memory, self.shape, self.shape)
        with _counting:
            if self.plain is None:
                self.plain = made
                self.count(self.plain_nbytes)
            return self.plain

    @property
    def plain_nbytes(self) -> int:
        held = self.existing
        return 0 if held is None else held.dtype.itemsize * prod(self.shape)

    @property
    def padding(self) -> int:
        """The bytes of the padding."""
        return 0 if self.kept is None else self.kept.nbytes - self.plain_nbytes

    def fetch(self) -> np.ndarray[Any, Any]:
        if self.plain is not None:
            return client.to_host(self.plain, copy=False)
        return cut(client.to_host(self.kept, copy=False), self.memory, self.shape)
