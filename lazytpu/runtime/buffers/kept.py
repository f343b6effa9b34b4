"""Values that the device keeps in an array which is not as others expect it: larger, or laid out in another way.

Whoever asks such a buffer for its `array` gets a plain one, a copy made when somebody asks; only what is made for the
array that is `kept` takes that. Both are valid until the value is overwritten.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from lazytpu.runtime.buffers.buffer import Buffer, Origin
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array


class KeptBuffer(Buffer):
    """A value with an array of its own kind (`kept`), and a plain copy once there is one; `nbytes` counts what is there
    of both. Without either it was released."""

    __slots__ = ("kept", "plain")

    def __init__(self, kept: Array, nbytes: int, origin: Origin | None, outcome: Any) -> None:
        self.kept: Any = kept  # `Buffer.__init__` would set `array`, which is made here
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
        """The bytes of a plain array."""

    @property
    def existing(self) -> Any:
        """An array of this value that exists already; None once the value was released."""
        return self.plain if self.kept is None else self.kept

    @property
    def copied(self) -> bool:
        """Whether there are two arrays of this value."""
        return self.kept is not None and self.plain is not None

    def arrays(self) -> list[tuple[str, Array]]:
        """The arrays that are there, by the names of their attributes."""
        both = ("kept", self.kept), ("plain", self.plain)
        return [(name, array) for name, array in both if array is not None and not client.is_deleted(array)]

    def gone(self) -> bool:
        return self.existing is None

    def taken(self) -> bool:
        """As any buffer's. Of two arrays, the one that the run took is dropped, and the other is the value."""
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
