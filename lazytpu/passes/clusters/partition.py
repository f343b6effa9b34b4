"""Where the clusters of a function begin and end: its ops in an order, and the cuts in it.

A cluster is a stretch of an order in which every op comes after what it depends on, so that it is convex, and clusters
that run one after the other have no cycle, whatever the cuts. What is chosen is the order, and where to cut:

1. *Free* ops belong to no cluster: every cluster that needs one has a copy. They are constants and what is computed
   from constants alone, element by element (an attention mask); run-time numbers, and scalars computed from them; and
   what makes a larger value of a smaller one, or a part or another shape of an argument. Otherwise the first layer
   would differ from the rest, since it would make what all of them use, and a broadcast would be kept in memory from
   one cluster to the next.
2. Ops of one source line that were recorded one after the other are taken apart into strands, which meet in scalars
   at most, and ordered by strand: an optimizer updates list by list, and is to be cut parameter by parameter.
3. The order is then cut where it repeats (`repeats.py`): that finds forward blocks, backward blocks and the updates of
   a layer's parameters, by what the ops are, without knowing what a layer is. Where in its period a stretch is cut is
   decided by the bytes that the layers on both sides would hand over.
4. What lies between is a cluster each, cut again where it has more than `most` ops. A collective is one by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from xdsl.dialects.builtin import UNKNOWN_LOC
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from lazytpu.ir.binary import BinaryOp
from lazytpu.ir.collectives import CollectiveOp, GroupRankOp
from lazytpu.ir.constants import ConstantOp, DenseConstantOp, IotaOp, NumberOp
from lazytpu.ir.pointwise import ClampOp, CompareOp, ConvertOp, SelectOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp, SliceOp, TransposeOp
from lazytpu.ir.types import numel, shape_of
from lazytpu.ir.unary import UnaryOp
from lazytpu.passes.clusters.repeats import Numbers, Stretch, stretches
from lazytpu.passes.graph import nbytes, sources
from lazytpu.passes.numbering import AttributeNumbers

POINTWISE = (UnaryOp, BinaryOp, CompareOp, SelectOp, ClampOp, ConvertOp)
VIEWS = (BroadcastInDimOp, ReshapeOp, SliceOp)
TABLE = 1024
"The most elements of a table that every cluster which reads it has a copy of."
RECOMPUTE = "lazytpu.recompute"


@dataclass
class Partition:
    """The clusters of a block, in an order in which they can run, and the ops of which each has copies."""

    clusters: list[list[Operation]]
    free: set[Operation]


def partition(block: Block, least: int, most: int) -> Partition:
    """The clusters of a block. `least` ops at least are spared by a repetition that is used, and are in a repeated
    cluster; `most` are in one that does not repeat."""
    sorter = _Sorter(block)
    free = sorter.free
    placed = _in_strands(sorter, sorter.ops)
    cuts = _Cuts(sorter, placed, least, most).found()
    clusters = [placed[a:b] for a, b in pairwise(cuts)]
    # What is returned must be made somewhere; of the free only what needs no argument is.
    first = [op for op in sorter.returned if op in free]
    return Partition([first, *clusters] if first else clusters, free)


def _makers(op: Operation | None) -> list[Operation]:
    """The ops that make the operands of an op."""
    owners = [] if op is None else [operand.owner for operand in op.operands]
    return [owner for owner in owners if isinstance(owner, Operation)]


@dataclass
class _Sorter:
    """The ops of a block by kind. `ops` are those that are not free."""

    block: Block
    ops: list[Operation] = field(default_factory=list[Operation])
    free: set[Operation] = field(default_factory=set[Operation])
    closed: set[Operation] = field(default_factory=set[Operation])
    "Those of the free that depend on no argument."
    scalars: set[Operation] = field(default_factory=set[Operation])
    "Those of the free that are run-time numbers, or computed from them."
    numbers: AttributeNumbers = field(default_factory=AttributeNumbers)
    returned: dict[Operation, None] = field(default_factory=dict[Operation, None])
    "Those that make what the block returns; of the free the closed alone."
    looks: dict[Operation, int] = field(default_factory=dict[Operation, int])
    "What an op is, as a number: equal for ops that do the same to operands of the same types."
    _by_look: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def __post_init__(self) -> None:
        self.returned.update(dict.fromkeys(_makers(self.block.last_op)))
        for op in self.block.ops:
            if op is self.block.last_op:
                continue
            if self._is_free(op):
                self.free.add(op)
            else:
                self.ops.append(op)
            self.looks[op] = self._look(op)

    def _is_free(self, op: Operation) -> bool:
        if op.attributes or not op.results:
            return False
        size = numel(shape_of(op.results[0]))
        if isinstance(op, (ConstantOp, IotaOp)) or (isinstance(op, DenseConstantOp) and size <= TABLE):
            self.closed.add(op)
            return True
        makers = [operand.owner for operand in op.operands]
        if op.operands and all(maker in self.closed for maker in makers):
            if isinstance(op, POINTWISE + VIEWS + (TransposeOp,)):
                self.closed.add(op)
                return True
            return False
        if op in self.returned:
            return False
        if self._is_scalar(op):
            self.scalars.add(op)
            return True
        if not isinstance(op, VIEWS):
            return False
        (viewed,) = op.operands
        grows = isinstance(op, BroadcastInDimOp) and size > numel(shape_of(viewed))
        return grows or isinstance(viewed, BlockArgument) or viewed.owner in self.free

    def _is_scalar(self, op: Operation) -> bool:
        if isinstance(op, NumberOp):
            return isinstance(op.pack, BlockArgument)
        made = all(operand.owner in self.scalars or operand.owner in self.closed for operand in op.operands)
        return made and isinstance(op, POINTWISE) and numel(shape_of(op.results[0])) == 1

    def _look(self, op: Operation) -> int:
        """Free operands are part of what an op is; of others, their types."""
        operands = [
            (0, self.looks[operand.owner])
            if isinstance(operand.owner, Operation) and operand.owner in self.free
            else (1, self.numbers[operand.type])
            for operand in op.operands
        ]
        # Which number it is does not matter: outline.py makes the place of a number an argument.
        known = {} if op in self.scalars and isinstance(op, NumberOp) else op.properties
        properties = [(name, self.numbers[value]) for name, value in sorted(known.items())]
        attributes = [
            (name, -1 if name == RECOMPUTE else self.numbers[value]) for name, value in sorted(op.attributes.items())
        ]
        results = tuple(self.numbers[result.type] for result in op.results)
        key = (type(op), tuple(operands), tuple(properties), tuple(attributes), results)
        return self._by_look.setdefault(key, len(self._by_look))


def _in_strands(sorter: _Sorter, ops: Sequence[Operation]) -> list[Operation]:
    """The ops in the order of step 3."""
    placed: list[Operation] = []
    group: list[Operation] = []
    for op in ops:
        if group and (not _of_one_line(group[-1], op) or _communicates(group[-1]) or _communicates(op)):
            placed.extend(_by_strand(sorter, group))
            group = []
        group.append(op)
    placed.extend(_by_strand(sorter, group))
    return placed


def _of_one_line(a: Operation, b: Operation) -> bool:
    return a.location == b.location != UNKNOWN_LOC


def _communicates(op: Operation) -> bool:
    """Whether devices exchange values by an op, which is to be a cluster by itself."""
    return isinstance(op, CollectiveOp) and not isinstance(op, GroupRankOp)


def _by_strand(sorter: _Sorter, group: Sequence[Operation]) -> Iterable[Operation]:
    """Ops of one line, each strand as a whole where what it needs allows that."""
    if len(group) < 3:
        return group
    index = {op: i for i, op in enumerate(group)}
    strand = list(range(len(group)))  # a forest: each op points to an earlier one of its strand

    def first(i: int) -> int:
        while strand[i] != i:
            strand[i] = strand[strand[i]]
            i = strand[i]
        return i

    users: list[list[int]] = [[] for _ in group]
    missing = [0] * len(group)
    for i, op in enumerate(group):
        for value in sources(op, sorter.free):
            maker = index.get(value.owner) if isinstance(value.owner, Operation) else None
            if maker is None:
                continue
            users[maker].append(i)
            missing[i] += 1
            if numel(shape_of(value)) > 1:
                a, b = sorted((first(maker), first(i)))
                strand[b] = a
    ready = [(first(i), i) for i in range(len(group)) if not missing[i]]
    heapify(ready)
    placed: list[Operation] = []
    while ready:
        _, i = heappop(ready)
        placed.append(group[i])
        for user in users[i]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (first(user), user))
    return placed


class _Cuts:
    """Where to cut ops in an order."""

    def __init__(self, sorter: _Sorter, ops: Sequence[Operation], least: int, most: int):
        self.ops, self.least, self.most = ops, least, most
        self.sequence = [sorter.looks[op] for op in ops]
        # Parts of scalars alone would cost more to launch than to compile.
        self.tiny = [all(numel(shape_of(result)) == 1 for result in op.results) for op in ops]
        place: dict[Operation | Block, int] = {op: i for i, op in enumerate(ops)}
        uses: dict[SSAValue, list[int]] = {}
        for i, op in enumerate(ops):
            for value in sources(op, sorter.free):
                if value.owner in place:
                    uses.setdefault(value, []).append(i)
        # (place of the maker, places of the users, bytes) of each value
        self.values = [(place[value.owner], found, nbytes(value)) for value, found in uses.items()]

    def found(self) -> list[int]:
        """The cuts: the first and last are the ends, and between two that follow one another there is a cluster."""
        cuts: set[int] = {0, len(self.ops)}
        repeated: set[int] = set()  # where a repeated cluster begins
        for stretch in stretches(self.sequence, self.least):
            at = self._of(stretch)
            cuts.update(at)
            repeated.update(at[:-1])
        for i, op in enumerate(self.ops):
            if _communicates(op):
                cuts.update((i, i + 1))
        ends = sorted(cuts)
        for a, b in pairwise(ends):
            if a not in repeated:
                cuts.update(self._halved(a, b))
        return sorted(cuts)

    def _of(self, stretch: Stretch) -> list[int]:
        """Where a stretch is cut: into equal parts of so many whole periods that each has `least` ops, beginning where
        least is handed over; of such places the first that leaves most parts."""
        period = stretch.period * -(-self.least // stretch.period)
        tiny = all(self.tiny[stretch.start : stretch.start + stretch.period])
        if tiny or stretch.end - stretch.start < 2 * period:
            return []
        crossing = self._crossing(stretch.start, stretch.end, period)
        spare = (stretch.end - stretch.start) % period
        # With two periods and no spare element beginning later would leave one alone.
        latest = period - 1 if stretch.end - stretch.start >= 3 * period else spare
        costs: list[tuple[float, int, int]] = []
        for begin in range(latest + 1):
            at = range(stretch.start + begin, stretch.end + 1, period)
            inner = [crossing[i - stretch.start] for i in at[1:-1]] or [crossing[at[0] - stretch.start]]
            costs.append((float(np.mean(inner)), -len(at), begin))
        begin = min(costs)[2]
        return list(range(stretch.start + begin, stretch.end + 1, period))

    def _crossing(self, start: int, end: int, reach: int) -> Numbers:
        """For each place from start to end the bytes of the values that are made before it and used after it, by ops
        at most `reach` from the one that makes it: what a later part of the step wants does not depend on the cut."""
        steps = np.zeros(end - start + 2, np.int64)
        for made, used, size in self.values:
            last = max((use for use in used if use - made <= reach), default=made)
            if last > made and made < end and last >= start:
                steps[max(0, made + 1 - start)] += size
                steps[min(last, end) + 1 - start] -= size
        return np.cumsum(steps)[:-1]

    def _halved(self, start: int, end: int) -> list[int]:
        """Cuts between start and end, so that no part has more than `most` ops: in the middle half, where least is
        handed over."""
        if end - start <= self.most:
            return []
        crossing = self._crossing(start, end, end - start)
        low, high = (end - start) // 4, 3 * (end - start) // 4
        at = start + low + int(np.argmin(crossing[low : high + 1]))
        at = min(max(at, start + 1), end - 1)
        return [*self._halved(start, at), at, *self._halved(at, end)]
