"""Which data of the host is padded when it comes: what somebody said will vary, and what programs wanted padded before.

A batch is uploaded before anyone knows the program that will take it. One that comes without padding is padded then,
which costs another copy, and the next one of its kind is padded at once, to the bound that was wanted. What a program
of its own sizes takes, such as the full batches beside a last one, comes as it is, also where its kind is padded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lazytpu.engine.sizes.buckets import SPREADS, active, bound, bound_within
from lazytpu.ports import Ranges
from lazytpu.runtime.buffers.repadding import Memory

MOST = 256  # kinds that are remembered

Kind = tuple[int | None, ...]
"The sizes of the dimensions of data, None for each that varies."


class Uploads:
    """The kinds of data that come in many sizes, by dtype, each with the bounds that programs had for what varies. Some
    sizes come as they are (`leave`)."""

    def __init__(self) -> None:
        self._kinds: dict[Any, dict[Kind, set[int]]] = {}
        self._exact: set[tuple[Any, tuple[int, ...]]] = set()

    def memory(self, dtype: Any, shape: Sequence[int], ranges: Ranges) -> Memory | None:
        """The sizes in memory for data of these true sizes; None for what is to be as it is."""
        if not active():
            return None
        kinds = self._kinds.get(dtype, {})
        if ranges:
            bounds = kinds.get(tuple([None if d in ranges else s for d, s in enumerate(shape)]), _NONE)
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
        """Data of these true sizes was wanted with those in memory. Merged dimensions say nothing of the next one."""
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
        """Data of these true sizes is wanted without padding."""
        if len(self._exact) >= MOST:
            self._exact.clear()
        self._exact.add((dtype, tuple(shape)))

    def forget(self) -> None:
        """Pad nothing that is not said to vary."""
        self._kinds.clear()
        self._exact.clear()


_NONE: frozenset[int] = frozenset()


def _spread(size: int, bounds: Collection[int]) -> int:
    """How far apart bounds are where programs wanted this size, if its bound is one of the `bounds` that they had."""
    return next((spread for spread in SPREADS if bound(size, spread) in bounds), SPREADS[-1])


UPLOADS = Uploads()
