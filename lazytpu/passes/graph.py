"""A block as a graph, for passes that look beyond an op and its operands.

The nodes are the ops of a block in order, numbered from 0, without the terminator. An edge leads from an op to each
user of its results. A set of ops is a Python integer with one bit per op: union, intersection and emptiness tests are
single operations, so that reachability in a step of 5,000 ops takes 20 ms and 3 MB, out of reach for sets of objects.
The quotient graph has few nodes and is a `networkx` graph, for its algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, TypeAlias

from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from lazytpu.ir.types import bitwidth, dtype_of, numel, shape_of

Bits = int
"""A set of ops: bit i is op i."""

Quotient: TypeAlias = Any
"""A `networkx.DiGraph` whose nodes are part numbers."""


def bits(members: Iterable[int]) -> Bits:
    """The set of the ops with these numbers."""
    ops = 0
    for member in members:
        ops |= 1 << member
    return ops


def members(ops: Bits) -> Iterator[int]:
    """The numbers of the ops in a set, in ascending order."""
    while ops:
        lowest = ops & -ops
        yield lowest.bit_length() - 1
        ops ^= lowest


def nbytes(value: SSAValue) -> int:
    """Bytes of a value without padding; an element takes at least one byte."""
    return numel(shape_of(value)) * max(1, bitwidth(dtype_of(value)) // 8)


def sources(op: Operation, copied: Collection[Operation]) -> list[SSAValue]:
    """The distinct values that an op uses, in order of use. An operand defined by an op in `copied` is replaced by the
    sources of that op."""
    values: dict[SSAValue, None] = {}
    pending = list(reversed(op.operands))
    while pending:
        value = pending.pop()
        if value.owner in copied:
            assert isinstance(value.owner, Operation)
            pending.extend(reversed(value.owner.operands))
        else:
            values[value] = None
    return list(values)


class OpGraph:
    """A snapshot of the ops of a block and their data flow: rewriting the block does not update it.

    `ops` are the nodes, `index` their numbers, `sources` the values that each uses; `before[i]` and `after[i]` are the
    direct producers and users of op i. Ops in `copied` are not nodes: their users use the sources of the op instead.
    """

    def __init__(self, block: Block, copied: Collection[Operation] = frozenset()):
        ops = [op for op in block.ops if not op.has_trait(IsTerminator)]
        self.ops: list[Operation] = [op for op in ops if op not in copied]
        self.index: dict[Operation, int] = {op: i for i, op in enumerate(self.ops)}
        self.sources: list[list[SSAValue]] = [sources(op, copied) for op in self.ops]
        self.before: list[Bits] = [0] * len(self.ops)
        self.after: list[Bits] = [0] * len(self.ops)
        for i, values in enumerate(self.sources):
            for value in values:
                producer = self.producer(value)
                if producer is not None:
                    self.before[i] |= 1 << producer
                    self.after[producer] |= 1 << i

    def producer(self, value: SSAValue) -> int | None:
        """The number of the op that defines a value; None for block arguments."""
        return self.index.get(value.owner) if isinstance(value.owner, Operation) else None

    @property
    def everything(self) -> Bits:
        """All ops."""
        return (1 << len(self.ops)) - 1

    @cached_property
    def ancestors(self) -> list[Bits]:
        """For each op, all ops that it depends on, without itself."""
        ancestors: list[Bits] = []
        for direct in self.before:
            reached = direct
            for producer in members(direct):
                reached |= ancestors[producer]
            ancestors.append(reached)
        return ancestors

    @cached_property
    def descendants(self) -> list[Bits]:
        """For each op, all ops that depend on it, without itself."""
        descendants = [0] * len(self.ops)
        for i in range(len(self.ops) - 1, -1, -1):
            reached = self.after[i]
            for user in members(self.after[i]):
                reached |= descendants[user]
            descendants[i] = reached
        return descendants

    def between(self, part: Bits) -> Bits:
        """The ops outside a part on a path between two of its ops; empty when the part is convex."""
        below = above = 0
        for i in members(part):
            below |= self.descendants[i]
            above |= self.ancestors[i]
        return below & above & ~part

    def is_convex(self, part: Bits) -> bool:
        """Whether no path leaves the part and returns to it: only then can it run as one program."""
        return not self.between(part)

    def quotient(self, parts: Sequence[Bits]) -> Quotient:
        """The graph of part numbers, whose edges carry `values`, the number of values that one part defines and the
        other uses, and `nbytes`, their bytes. It has a cycle unless all parts are convex, and may have one even then.

        Raises ValueError when an op is in no part or in several.
        """
        nx = _networkx()
        part_of = self._parts(parts)
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(parts)))
        counted: set[tuple[SSAValue, int]] = set()
        for i, values in enumerate(self.sources):
            for value in values:
                producer, part = self.producer(value), part_of[i]
                if producer is None or part_of[producer] == part or (value, part) in counted:
                    continue
                counted.add((value, part))
                edge = graph.get_edge_data(part_of[producer], part, {"values": 0, "nbytes": 0})
                values_between, size = edge["values"] + 1, edge["nbytes"] + nbytes(value)
                graph.add_edge(part_of[producer], part, values=values_between, nbytes=size)
        return graph

    def _parts(self, parts: Sequence[Bits]) -> list[int]:
        """The part number of each op."""
        part_of = [-1] * len(self.ops)
        for number, part in enumerate(parts):
            for i in members(part):
                if part_of[i] >= 0:
                    raise ValueError(f"op {i} ({self.ops[i].name}) is in the parts {part_of[i]} and {number}")
                part_of[i] = number
        if -1 in part_of:
            i = part_of.index(-1)
            raise ValueError(f"op {i} ({self.ops[i].name}) is in none of the {len(parts)} parts")
        return part_of

    def critical_path(self, cost: Callable[[Operation], float]) -> tuple[float, list[Operation]]:
        """(total cost, ops) of the costliest chain of dependent ops, a lower bound for any machine. Of chains of equal
        cost, the one whose ops come first."""
        if not self.ops:
            return 0.0, []
        total: list[float] = []
        via: list[int] = []
        for i, op in enumerate(self.ops):
            longest = max(members(self.before[i]), key=lambda j: total[j], default=-1)
            via.append(longest)
            total.append(cost(op) + (total[longest] if longest >= 0 else 0.0))
        i = max(range(len(total)), key=total.__getitem__)
        most, path = total[i], list[Operation]()
        while i >= 0:
            path.append(self.ops[i])
            i = via[i]
        return most, path[::-1]


def _networkx() -> Any:
    # Imported on demand, because that takes 0.15 s. Any, because half of its functions have no types.
    return import_module("networkx")


def cycle_of(quotient: Quotient) -> list[int]:
    """The parts on a cycle of a quotient graph; empty when the parts can run one after the other."""
    nx = _networkx()
    if nx.is_directed_acyclic_graph(quotient):
        return []
    return [source for source, _ in nx.find_cycle(quotient)]
