"""Values whose device array is not plain: it is padded, or has a custom layout.

`array` of such a buffer is a plain copy, computed on first use. Only a program that was compiled for the `kept` array
takes that one. Both arrays are valid until the value is overwritten.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from lazytpu.runtime.buffers.buffer import Buffer, Origin
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array


class KeptBuffer(Buffer):
    """A value with a non-plain array, `kept`, and a `plain` copy once one was needed. `nbytes` counts both arrays. A
    released buffer has neither."""

    __slots__ = ("kept", "plain")

    def __init__(self, kept: Array, nbytes: int, origin: Origin | None, outcome: Any) -> None:
        self.kept: Any = kept  # not `Buffer.__init__`, which sets `array`: here a read-only property
        self.plain: Any = None
        self.nbytes = 0
        self.origin = origin
        self.outcome = outcome
        self.pins = 0
        self.error = None
        self.count(nbytes)

    @property
    @abstractmethod
    def plain_nbytes(self) -> int:
        """The size in bytes of a plain array."""

    @property
    def existing(self) -> Any:
        """An array of this value that exists already; None once the value was released."""
        return self.plain if self.kept is None else self.kept

    @property
    def copied(self) -> bool:
        """Whether both arrays of this value exist."""
        return self.kept is not None and self.plain is not None

    def arrays(self) -> list[tuple[str, Array]]:
        """The existing arrays by attribute name."""
        candidates = ("kept", self.kept), ("plain", self.plain)
        return [(name, array) for name, array in candidates if array is not None and not client.is_deleted(array)]

    def gone(self) -> bool:
        return self.existing is None

    def taken(self) -> bool:
        """As in `Buffer`. If a run consumed one of two arrays, drop it: the other array still holds the value."""
        if self.copied:
            if client.is_deleted(self.plain):
                self.count(-self.plain_nbytes)
                self.plain = None
            elif client.is_deleted(self.kept):
                self.count(self.plain_nbytes - self.nbytes)
                self.kept = None
        return self.existing is not None and client.is_deleted(self.existing)

    def release(self) -> None:
        self.count(-self.nbytes)
        self.kept = self.plain = None
