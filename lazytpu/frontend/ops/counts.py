"""Counts of true elements in a graph that is captured: they are not read, but assumed, and computed by the graph."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from types import MappingProxyType
from typing import Any

import torch

from lazytpu.frontend.tensors import is_natural, value_of


class Counts:
    """The counts of a graph, in order: what each is assumed to be, by number, or else the number of elements.

    `bounds` are the numbers of elements, and `totals` the counts as the graph computes them. `asked` are the numbers
    of the counts in the order in which ops asked for them. `sizes` are the graph's symbols that are no counts."""

    def __init__(self, assumed: Mapping[int, int], sizes: Mapping[Any, int] = MappingProxyType({})) -> None:
        self.assumed, self.sizes = assumed, sizes
        self.bounds: list[int] = []
        self.totals: list[torch.Tensor] = []
        self.asked: list[int] = []
        self._known: dict[Any, int] = {}
        self._held: list[Any] = []  # so that no other has their addresses

    def of(self, mask: torch.Tensor) -> int:
        """How many elements of a tensor are not 0."""
        value = value_of(mask)
        whole = is_natural(mask, value.layout)
        view = None if whole else (tuple(mask.shape), mask.stride(), mask.storage_offset(), mask.dtype)
        number = self._known.setdefault((id(value), view), len(self.bounds))
        if number == len(self.bounds):
            self._held.append(value)
            self.bounds.append(prod(mask.shape))
            self.totals.append((mask != 0).sum())
        self.asked.append(number)
        return self.assumed.get(number, self.bounds[number])


_COUNTS: ContextVar[Counts | None] = ContextVar("counts", default=None)


def counts() -> Counts | None:
    """Those of the graph that is captured; None where counts are read."""
    return _COUNTS.get()


@contextmanager
def counting(assumed: Counts) -> Generator[None]:
    """Within, counts are assumed."""
    token = _COUNTS.set(assumed)
    try:
        yield
    finally:
        _COUNTS.reset(token)
