"""Builds a plan: steps are appended, adjacent ones of a kind are merged, and no-ops are dropped.

With `identities`, slices and reshapes that change nothing are kept, so that the plans of a view have the same steps for
all sizes, even where it covers its whole storage.
"""

from __future__ import annotations

from lazytpu.aten.views.steps import Broadcast, Pad, Plan, Reshape, Shape, Slice, Stack, Step, Take, Transpose


class PlanBuilder:
    """The steps so far and the shape they result in."""

    def __init__(self, shape: Shape, identities: bool = False) -> None:
        self.shape = shape
        self.identities = identities
        self._steps: list[Step] = []

    def plan(self) -> Plan:
        return tuple(self._steps)

    def slice(self, axis: int, start: int, count: int, stride: int = 1) -> None:
        """Keep `count` elements of `axis` from `start` on, `stride` apart."""
        if not self.identities and count == self.shape[axis]:
            return
        shape, rank = self.shape, len(self.shape)
        starts, counts, strides = [0] * rank, list(shape), [1] * rank
        if self._steps and isinstance(last := self._steps[-1], Slice):
            self._steps.pop()
            shape, starts, counts, strides = last.shape, list(last.starts), list(last.counts), list(last.strides)
        starts[axis] += start * strides[axis]
        strides[axis] = stride * strides[axis] if count > 1 else 1
        counts[axis] = count
        self.shape = tuple(counts)
        self._steps.append(Slice(shape, tuple(starts), self.shape, tuple(strides)))

    def pad(self, axis: int, count: int) -> None:
        """Append `count` elements of no meaning to `axis`."""
        if count:
            self._steps.append(Pad(self.shape, axis, count))
            self.shape = self.shape[:axis] + (self.shape[axis] + count,) + self.shape[axis + 1 :]

    def reshape(self, shape: Shape) -> None:
        before = self.shape
        if self._steps and isinstance(last := self._steps[-1], Reshape):
            self._steps.pop()
            before = last.shape
        if self.identities or before != shape:
            self._steps.append(Reshape(before, shape))
        self.shape = shape

    def split(self, axis: int, factors: Shape) -> None:
        """Reshape `axis` into the dims `factors`."""
        self.reshape(self.shape[:axis] + factors + self.shape[axis + 1 :])

    def transpose(self, permutation: Shape) -> None:
        if permutation != tuple(range(len(permutation))):
            self._steps.append(Transpose(permutation))
            self.shape = tuple(self.shape[axis] for axis in permutation)

    def broadcast(self, shape: Shape, dims: Shape) -> None:
        self._steps.append(Broadcast(self.shape, shape, dims))
        self.shape = shape

    def stack(self, plans: tuple[Plan, ...], shape: Shape, axis: int) -> None:
        """Concatenate the results of `plans`, each of `shape` (1 at `axis`)."""
        self.shape = shape[:axis] + (len(plans),) + shape[axis + 1 :]
        self._steps.append(Stack(plans, axis, self.shape))

    def take(self, axis: int, offset: int, counts: Shape, strides: Shape) -> None:
        """Replace `axis` by dims `counts`: element i is element `offset + sum(i * strides)` of the axis."""
        self._steps.append(Take(self.shape, axis, offset, counts, strides))
        self.shape = self.shape[:axis] + counts + self.shape[axis + 1 :]
