"""Values whose array is larger than their shape. Each dimension has the size of a bucket: the first elements are the
*true* ones and the others are *padding*, with unspecified contents.

Code that does not know of padding cannot see it: `array` of such a buffer has the true sizes, computed on the device,
and `fetch` returns the true elements. Only a program that was compiled for padded inputs takes the `kept` array.
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
"""Whether to overwrite all padding with NaN, the largest integer, or True. Tests set it, so that a result that depends
on padding is certainly wrong."""

_counting = threading.Lock()


def _nothing() -> None:
    pass


class PaddedBuffer(KeptBuffer):
    """A value of the true sizes `shape`, in memory order. The sizes of its `kept` array, `memory`, are at least as
    large. Its `array` is a copy of the true sizes.

    `ranges` gives the dimensions that the user marked as varying, as dimension in memory order -> (least size, greatest
    size or None for unlimited). `in_vain` is called when a padded upload is converted to the true sizes, so that
    padding it was wasted.
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
        if self.outcome is None:  # an upload needs no wait; a device program for each size would cost more
            self.in_vain()
            MEMORY.note_execution(0, self.plain_nbytes, 0)
            unpadded = client.to_device(self.fetch())
        else:
            unpadded = moved(kept, self.memory, self.shape, self.shape)
        with _counting:
            if self.plain is None:
                self.plain = unpadded
                self.count(self.plain_nbytes)
            return self.plain

    @property
    def plain_nbytes(self) -> int:
        array = self.existing
        return 0 if array is None else array.dtype.itemsize * prod(self.shape)

    @property
    def padding(self) -> int:
        """The size of the padding in bytes."""
        return 0 if self.kept is None else self.kept.nbytes - self.plain_nbytes

    def fetch(self) -> np.ndarray[Any, Any]:
        if self.plain is not None:
            return client.to_host(self.plain, copy=False)
        return cut(client.to_host(self.kept, copy=False), self.memory, self.shape)
