"""Which data of the host is padded when it comes: what somebody said will vary, and what programs wanted padded before.

A batch is uploaded before anyone knows the program that will take it. One that comes without padding is padded then,
which costs another copy, and the next one of its kind is padded at once. What a program of its own sizes takes, such as
the full batches beside a last one, comes as it is, also where its kind is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazytpu.engine.sizes.buckets import active, bound, bound_within
from lazytpu.ports import Ranges
from lazytpu.runtime.repadding import Memory

MOST = 256  # kinds that are remembered


class Uploads:
    """The kinds of data that come in many sizes: by dtype the sizes of the dimensions, None for each that varies. Some
    sizes come as they are (`leave`)."""

    def __init__(self) -> None:
        self._kinds: dict[Any, list[tuple[int | None, ...]]] = {}
        self._exact: set[tuple[Any, tuple[int, ...]]] = set()

    def memory(self, dtype: Any, shape: Sequence[int], ranges: Ranges) -> Memory | None:
        """The sizes in memory for data of these true sizes; None for what is to be as it is."""
        if not active():
            return None
        if ranges:
            return tuple([bound_within(s, *ranges[d]) if d in ranges else s for d, s in enumerate(shape)])
        if (dtype, tuple(shape)) in self._exact:
            return None
        for kind in self._kinds.get(dtype, ()):
            if len(kind) == len(shape) and all(k is None or k == s for k, s in zip(kind, shape, strict=True)):
                memory = tuple([s if k is not None else bound(s) for k, s in zip(kind, shape, strict=True)])
                return None if memory == tuple(shape) else memory
        self.leave(dtype, shape)  # until a program wants it with padding
        return None

    def learn(self, dtype: Any, shape: Sequence[int], memory: Memory) -> None:
        """Data of these true sizes was wanted with those in memory. Merged dimensions say nothing of the next one."""
        if any(not isinstance(size, int) for size in memory):
            return
        self._exact.discard((dtype, tuple(shape)))
        kind = tuple([s if m == s else None for m, s in zip(memory, shape, strict=True)])
        kinds = self._kinds.setdefault(dtype, [])
        if kind not in kinds:
            self._kinds[dtype] = [kind, *kinds][:MOST]

    def leave(self, dtype: Any, shape: Sequence[int]) -> None:
        """Data of these true sizes is wanted without padding."""
        if len(self._exact) >= MOST:
            self._exact.clear()
        self._exact.add((dtype, tuple(shape)))

    def forget(self) -> None:
        """Pad nothing that is not said to vary."""
        self._kinds.clear()
        self._exact.clear()


UPLOADS = Uploads()
