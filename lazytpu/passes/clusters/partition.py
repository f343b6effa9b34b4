"""Partitions the ops of a function into clusters: puts them in an order, and chooses the cuts.

A cluster is a contiguous part of a topological order. Whatever the cuts, it is therefore convex, and the clusters can
run one after the other. The order and the cuts are chosen in four steps:

1. *Free* ops (`sorter.py`) belong to no cluster: every cluster that needs one has a copy.
2. Ops of one source line that were recorded in a row are split into strands, which are connected by scalars at most,
   and ordered by strand: an optimizer updates list by list, but is to be cut parameter by parameter.
3. The order is cut where it repeats (`repeats.py`). That finds forward blocks, backward blocks and the updates of a
   layer's parameters from the ops alone, without knowing what a layer is. The cut within a period is where the fewest
   bytes pass from one layer to the next.
4. Each part in between is a cluster, and is cut again where it has more than `most` ops. A collective is a cluster by
   itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from xdsl.dialects.builtin import UNKNOWN_LOC
from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir.location import same_line
from lazytpu.ir.types import numel, shape_of
from lazytpu.passes.clusters.repeats import Numbers, Stretch, stretches
from lazytpu.passes.clusters.sorter import Sorter, communicates
from lazytpu.passes.graph import nbytes, sources


@dataclass
class Partition:
    """The clusters of a block, in an order in which they can run, and the free ops, which are copied to clusters."""

    clusters: list[list[Operation]]
    free: set[Operation]


def partition(block: Block, least: int, most: int) -> Partition:
    """The clusters of a block. A repetition is used if it spares `least` ops or more, and its clusters have at least
    that many; clusters that do not repeat have at most `most` ops."""
    sorter = Sorter(block)
    free = sorter.free
    order = _in_strands(sorter, sorter.ops)
    cuts = _Cutter(sorter, order, least, most).cuts()
    clusters = [order[a:b] for a, b in pairwise(cuts)]
    # Returned values must be computed in some cluster; the free ops among them depend on no argument.
    first = [op for op in sorter.returned if op in free]
    return Partition([first, *clusters] if first else clusters, free)


def _in_strands(sorter: Sorter, ops: Sequence[Operation]) -> list[Operation]:
    """The ops in the order of step 2."""
    order: list[Operation] = []
    group: list[Operation] = []
    for op in ops:
        if group and (not _of_one_line(group[-1], op) or communicates(group[-1]) or communicates(op)):
            order.extend(_by_strand(sorter, group))
            group = []
        group.append(op)
    order.extend(_by_strand(sorter, group))
    return order


def _of_one_line(a: Operation, b: Operation) -> bool:
    return a.location != UNKNOWN_LOC and same_line(a.location, b.location)


def _by_strand(sorter: Sorter, group: Sequence[Operation]) -> Iterable[Operation]:
    """Ops of one source line ordered by strand, as far as their dependences allow."""
    if len(group) < 3:
        return group
    index = {op: i for i, op in enumerate(group)}
    strand = list(range(len(group)))  # a disjoint-set forest: each op points to an earlier one of its strand

    def first(i: int) -> int:
        while strand[i] != i:
            strand[i] = strand[strand[i]]
            i = strand[i]
        return i

    users: list[list[int]] = [[] for _ in group]
    unplaced = [0] * len(group)
    for i, op in enumerate(group):
        for value in sources(op, sorter.free):
            producer = index.get(value.owner) if isinstance(value.owner, Operation) else None
            if producer is None:
                continue
            users[producer].append(i)
            unplaced[i] += 1
            if numel(shape_of(value)) > 1:
                a, b = sorted((first(producer), first(i)))
                strand[b] = a
    ready = [(first(i), i) for i in range(len(group)) if not unplaced[i]]
    heapify(ready)
    order: list[Operation] = []
    while ready:
        _, i = heappop(ready)
        order.append(group[i])
        for user in users[i]:
            unplaced[user] -= 1
            if not unplaced[user]:
                heappush(ready, (first(user), user))
    return order


class _Cutter:
    """Chooses where to cut an order of ops."""

    def __init__(self, sorter: Sorter, ops: Sequence[Operation], least: int, most: int):
        self.ops, self.least, self.most = ops, least, most
        self.sequence = [sorter.signatures[op] for op in ops]
        # A cluster of scalars alone would cost more to launch than it saves in compilation.
        self.tiny = [all(numel(shape_of(result)) == 1 for result in op.results) for op in ops]
        position: dict[Operation | Block, int] = {op: i for i, op in enumerate(ops)}
        uses: dict[SSAValue, list[int]] = {}
        for i, op in enumerate(ops):
            for value in sources(op, sorter.free):
                if value.owner in position:
                    uses.setdefault(value, []).append(i)
        # (position of the producer, positions of the users, bytes) of each value
        self.values = [(position[value.owner], users, nbytes(value)) for value, users in uses.items()]

    def cuts(self) -> list[int]:
        """The cuts in ascending order, both ends included; each cluster lies between two consecutive ones."""
        cuts: set[int] = {0, len(self.ops)}
        repeated: set[int] = set()  # starts of repeated clusters
        for stretch in stretches(self.sequence, self.least):
            stretch_cuts = self._stretch_cuts(stretch)
            cuts.update(stretch_cuts)
            repeated.update(stretch_cuts[:-1])
        for i, op in enumerate(self.ops):
            if communicates(op):
                cuts.update((i, i + 1))
        ends = sorted(cuts)
        for a, b in pairwise(ends):
            if a not in repeated:
                cuts.update(self._bisect(a, b))
        return sorted(cuts)

    def _stretch_cuts(self, stretch: Stretch) -> list[int]:
        """Return the cuts of a stretch into equal parts, each of the fewest whole periods that have `least` ops. The
        first cut is where the fewest bytes cross; of equal ones, the first that leaves the most parts."""
        period = stretch.period * -(-self.least // stretch.period)
        tiny = all(self.tiny[stretch.start : stretch.start + stretch.period])
        if tiny or stretch.end - stretch.start < 2 * period:
            return []
        crossing = self._crossing(stretch.start, stretch.end, period)
        spare = (stretch.end - stretch.start) % period
        # With less than three periods, a start beyond the spare elements would leave only one part.
        latest = period - 1 if stretch.end - stretch.start >= 3 * period else spare
        costs: list[tuple[float, int, int]] = []
        for begin in range(latest + 1):
            at = range(stretch.start + begin, stretch.end + 1, period)
            inner = [crossing[i - stretch.start] for i in at[1:-1]] or [crossing[at[0] - stretch.start]]
            costs.append((float(np.mean(inner)), -len(at), begin))
        begin = min(costs)[2]
        return list(range(stretch.start + begin, stretch.end + 1, period))

    def _crossing(self, start: int, end: int, reach: int) -> Numbers:
        """For each position from start to end, the bytes of the values that cross it: defined before, and used after it
        by ops at most `reach` after the definition. Later uses cross for every choice of the cut."""
        steps = np.zeros(end - start + 2, np.int64)
        for defined, used, size in self.values:
            last = max((use for use in used if use - defined <= reach), default=defined)
            if last > defined and defined < end and last >= start:
                steps[max(0, defined + 1 - start)] += size
                steps[min(last, end) + 1 - start] -= size
        return np.cumsum(steps)[:-1]

    def _bisect(self, start: int, end: int) -> list[int]:
        """Cuts between start and end such that no part has more than `most` ops, each in the middle half of a part,
        where the fewest bytes cross."""
        if end - start <= self.most:
            return []
        crossing = self._crossing(start, end, end - start)
        low, high = (end - start) // 4, 3 * (end - start) // 4
        at = start + low + int(np.argmin(crossing[low : high + 1]))
        at = min(max(at, start + 1), end - 1)
        return [*self._bisect(start, at), at, *self._bisect(at, end)]
