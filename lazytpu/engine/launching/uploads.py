"""Padding of host data at upload: dimensions that the user marked, and dimensions that programs needed padded before.

A batch is uploaded before its program is known. If the program needs padding, the batch is copied once more. The next
batch of its kind is then padded at upload to the bound that was needed. Data for an exact program, such as full batches
beside a shorter last one, is uploaded unpadded even if its kind is padded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lazytpu.engine.sizes.buckets import SPREADS, active, bound, bound_within
from lazytpu.ports import Ranges
from lazytpu.runtime.buffers.repadding import Memory

MOST = 256  # kinds that are remembered

Kind = tuple[int | None, ...]
"""The shape of uploaded data, with None for each dimension that varies."""


class Uploads:
    """The kinds of data that vary in size, by dtype, each with the bounds that programs needed. Some shapes stay exact
    (`leave`)."""

    def __init__(self) -> None:
        self._kinds: dict[Any, dict[Kind, set[int]]] = {}
        self._exact: set[tuple[Any, tuple[int, ...]]] = set()

    def memory(self, dtype: Any, shape: Sequence[int], ranges: Ranges) -> Memory | None:
        """Return the padded sizes for data of this true shape, or None to upload it unpadded."""
        if not active():
            return None
        kinds = self._kinds.get(dtype, {})
        if ranges:
            bounds = kinds.get(tuple([None if d in ranges else s for d, s in enumerate(shape)]), ())
            within = {d: bound_within(shape[d], *limits, _spread(shape[d], bounds)) for d, limits in ranges.items()}
            return tuple([within.get(d, s) for d, s in enumerate(shape)])
        if (dtype, tuple(shape)) in self._exact:
            return None
        for kind, bounds in kinds.items():
            if len(kind) == len(shape) and all(k is None or k == s for k, s in zip(kind, shape, strict=True)):
                sizes = zip(kind, shape, strict=True)
                memory = tuple([s if k is not None else bound(s, _spread(s, bounds)) for k, s in sizes])
                return None if memory == tuple(shape) else memory
        self.leave(dtype, shape)  # until a program wants it with padding
        return None

    def learn(self, dtype: Any, shape: Sequence[int], memory: Memory) -> None:
        """Note that a program needed data of this true shape with these sizes in memory. Merged
        dimensions are ignored."""
        plain = [size for size in memory if isinstance(size, int)]
        if len(plain) < len(memory):
            return
        self._exact.discard((dtype, tuple(shape)))
        kind = tuple([s if m == s else None for m, s in zip(plain, shape, strict=True)])
        kinds = self._kinds.setdefault(dtype, {})
        bounds = kinds.pop(kind, set[int]())
        bounds.update([m for k, m in zip(kind, plain, strict=True) if k is None])
        self._kinds[dtype] = dict([(kind, bounds), *list(kinds.items())[: MOST - 1]])

    def leave(self, dtype: Any, shape: Sequence[int]) -> None:
        """Note that a program needs data of this true shape unpadded."""
        if len(self._exact) >= MOST:
            self._exact.clear()
        self._exact.add((dtype, tuple(shape)))

    def forget(self) -> None:
        """Forget all that was learned: pad only marked dimensions."""
        self._kinds.clear()
        self._exact.clear()


def _spread(size: int, bounds: Collection[int]) -> int:
    """Return the spacing at which this size's bound is one of `bounds`, which programs needed; else the narrowest."""
    return next((spread for spread in SPREADS if bound(size, spread) in bounds), SPREADS[-1])


UPLOADS = Uploads()
