"""Values that lie in one array, end to end: small parameters and optimizer states as their step's program keeps them.

A pack is made by a run of a program that takes and gives it flat. Each of its parts is the buffer of one value, and
whoever needs a part as an array of its own gets a copy, by way of the host, which compiles nothing. The pack stays
valid beside it: values do not change. It is donated when all its parts are dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY, Buffer, DeviceMemory, Origin


@dataclass(frozen=True, slots=True)
class Form:
    """How parts lie in a pack: their shapes (row-major), and where in the flat array each begins and ends."""

    dtype: np.dtype[Any]
    shapes: tuple[tuple[int, ...], ...]
    bounds: tuple[int, ...]
    """One more than there are parts."""

    @classmethod
    def of(cls, dtype: np.dtype[Any], shapes: Sequence[tuple[int, ...]]) -> Form:
        bounds = [0]
        for shape in shapes:
            bounds.append(bounds[-1] + int(np.prod(shape, dtype=np.int64)))
        return cls(dtype, tuple(shapes), tuple(bounds))

    @property
    def nbytes(self) -> int:
        return self.bounds[-1] * self.dtype.itemsize

    def size(self, index: int) -> int:
        """Bytes of one part."""
        return (self.bounds[index + 1] - self.bounds[index]) * self.dtype.itemsize


class Pack:
    """A flat device array of several values. `array` is None once it was donated; its bytes count in `MEMORY` until
    then, or until the last of its parts is gone."""

    __slots__ = ("__weakref__", "array", "form", "nbytes")

    def __init__(self, array: Any, form: Form):
        self.array = array
        self.form = form
        self.nbytes = nbytes = form.nbytes
        MEMORY.live = live = MEMORY.live + nbytes
        if live > MEMORY.peak:
            MEMORY.peak = live

    def __del__(self, memory: DeviceMemory = MEMORY) -> None:
        memory.live -= self.nbytes  # as Buffer's: at any time, on any thread

    def release(self) -> None:
        """Gives the array up: it was donated to a run."""
        MEMORY.live -= self.nbytes
        self.nbytes = 0
        self.array = None

    def fetch(self, index: int) -> np.ndarray[Any, Any]:
        """A copy of one part on the host, once it is there. Raises RunError when what makes it failed."""
        form = self.form
        flat = client.to_host(self.array, copy=False)
        return flat[form.bounds[index] : form.bounds[index + 1]].reshape(form.shapes[index]).copy()


class Part(Buffer):
    """One value in a pack: a buffer whose `array` is copied out of it when somebody asks. `pack` is None once it was
    released."""

    __slots__ = ("_own", "index", "pack")

    def __init__(self, pack: Pack, index: int, nbytes: int, origin: Origin | None, outcome: Any = None) -> None:
        self.pack: Pack | None = pack
        self.index = index
        self._own: Any = None
        self.nbytes = nbytes
        self.origin = origin
        self.outcome = outcome
        self.pins = 0
        self.error = None

    def __del__(self, memory: DeviceMemory = MEMORY) -> None:
        if self._own is not None:
            memory.live -= self.nbytes

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An array of this value alone; None once it was released, or the pack was given to a run."""
        if self._own is None and self.pack is not None and self.pack.array is not None:
            self._keep(client.to_device(self.pack.fetch(self.index)))
        return self._own

    @property
    def copied(self) -> bool:
        """Whether there is an array of this value alone."""
        return self._own is not None

    def fetch(self) -> np.ndarray[Any, Any]:
        if self._own is None and self.pack is not None and self.pack.array is not None:
            return self.pack.fetch(self.index)
        return client.to_host(self._own, copy=True)

    def gone(self) -> bool:
        return not self.copied and (self.pack is None or self.pack.array is None)

    def taken(self) -> bool:
        if self.copied:
            return client.is_deleted(self._own)
        return self.pack is not None and self.pack.array is not None and client.is_deleted(self.pack.array)

    def _drop_copy(self) -> None:
        """Free the array of this value alone."""
        if self._own is not None:
            self._own = None
            MEMORY.live -= self.nbytes

    def release(self) -> None:
        self._drop_copy()
        self.pack = None
        self.nbytes = 0

    def _keep(self, array: Any) -> None:
        self._own = array
        MEMORY.live = live = MEMORY.live + self.nbytes
        if live > MEMORY.peak:
            MEMORY.peak = live


def pack_of(parts: Sequence[Buffer], form: Form) -> Pack:
    """The pack whose parts are exactly these, in this order; else a new one, made on the host.

    Raises RunError when a program that was to make one of the values failed, OutOfMemory when there is no room.
    """
    first = parts[0]
    pack = first.pack if isinstance(first, Part) else None
    if pack is not None and pack.array is not None and len(pack.form.shapes) == len(parts):
        for index, part in enumerate(parts):
            if not isinstance(part, Part) or part.pack is not pack or part.index != index:
                break
        else:
            return pack
    return Pack(client.to_device(np.concatenate([part.fetch().reshape(-1) for part in parts])), form)
