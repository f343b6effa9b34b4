"""A block as a graph: what the passes that look further than from an op to its operands share.

Nodes are the ops of a block in their order, numbered from 0; the terminator is none of them. An edge leads from an op
to each user of its results. Sets of ops are Python integers, one bit an op: union, intersection and "is there any" are
single operations on all ops at once, so that reachability of a step of 5,000 ops takes 20 ms and 3 MB, which sets of
objects could not do. `networkx` has the quotient graph, where nodes are few and its algorithms are wanted.
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
"""A `networkx.DiGraph` whose nodes are the numbers of parts."""


def bits(members: Iterable[int]) -> Bits:
    """The set of these ops."""
    found = 0
    for member in members:
        found |= 1 << member
    return found


def members(found: Bits) -> Iterator[int]:
    """The ops of a set, in their order."""
    while found:
        lowest = found & -found
        yield lowest.bit_length() - 1
        found ^= lowest


def nbytes(value: SSAValue) -> int:
    """Bytes of a value, without padding; what is smaller than a byte takes one an element."""
    return numel(shape_of(value)) * max(1, bitwidth(dtype_of(value)) // 8)


def sources(op: Operation, copied: Collection[Operation]) -> list[SSAValue]:
    """The values that an op takes, each once, in order of use; of an operand that an op of `copied` makes, what that
    one takes."""
    found: dict[SSAValue, None] = {}
    pending = list(reversed(op.operands))
    while pending:
        value = pending.pop()
        if value.owner in copied:
            assert isinstance(value.owner, Operation)
            pending.extend(reversed(value.owner.operands))
        else:
            found[value] = None
    return list(found)


class Graph:
    """The ops of a block and the values between them. It is a picture: rewriting the block does not change it.

    `ops` are the nodes, `index` the number of each, `sources` the values that each takes; `before[i]` and `after[i]`
    are the ops that op i uses and that use it. Ops in `copied` are no nodes: who uses one takes what it is made of.
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
                maker = self.maker(value)
                if maker is not None:
                    self.before[i] |= 1 << maker
                    self.after[maker] |= 1 << i

    def maker(self, value: SSAValue) -> int | None:
        """The op that makes a value; None for arguments."""
        return self.index.get(value.owner) if isinstance(value.owner, Operation) else None

    @property
    def everything(self) -> Bits:
        """All ops."""
        return (1 << len(self.ops)) - 1

    @cached_property
    def ancestors(self) -> list[Bits]:
        """For each op all that it depends on, itself not among them."""
        found: list[Bits] = []
        for direct in self.before:
            reached = direct
            for maker in members(direct):
                reached |= found[maker]
            found.append(reached)
        return found

    @cached_property
    def descendants(self) -> list[Bits]:
        """For each op all that depend on it, itself not among them."""
        found = [0] * len(self.ops)
        for i in range(len(self.ops) - 1, -1, -1):
            reached = self.after[i]
            for user in members(self.after[i]):
                reached |= found[user]
            found[i] = reached
        return found

    def between(self, part: Bits) -> Bits:
        """The ops outside a part that lie on a path from one op of it to another: none when it is convex."""
        below = above = 0
        for i in members(part):
            below |= self.descendants[i]
            above |= self.ancestors[i]
        return below & above & ~part

    def is_convex(self, part: Bits) -> bool:
        """Whether no path leaves the part and comes back: only then can it run as one program."""
        return not self.between(part)

    def quotient(self, parts: Sequence[Bits]) -> Quotient:
        """The graph whose nodes are the numbers of the parts, and whose edges carry `values`, the number of values that
        one part makes and the other uses, and `nbytes`, their bytes. It has a cycle unless all parts are convex, and
        may have one even then.

        Raises ValueError when an op is in no part or in several.
        """
        nx = _networkx()
        part_of = self._parts(parts)
        made = nx.DiGraph()
        made.add_nodes_from(range(len(parts)))
        taken: set[tuple[SSAValue, int]] = set()
        for i, values in enumerate(self.sources):
            for value in values:
                maker, part = self.maker(value), part_of[i]
                if maker is None or part_of[maker] == part or (value, part) in taken:
                    continue
                taken.add((value, part))
                known = made.get_edge_data(part_of[maker], part, {"values": 0, "nbytes": 0})
                many, size = known["values"] + 1, known["nbytes"] + nbytes(value)
                made.add_edge(part_of[maker], part, values=many, nbytes=size)
        return made

    def _parts(self, parts: Sequence[Bits]) -> list[int]:
        """The part of each op."""
        found = [-1] * len(self.ops)
        for number, part in enumerate(parts):
            for i in members(part):
                if found[i] >= 0:
                    raise ValueError(f"op {i} ({self.ops[i].name}) is in the parts {found[i]} and {number}")
                found[i] = number
        if -1 in found:
            i = found.index(-1)
            raise ValueError(f"op {i} ({self.ops[i].name}) is in none of the {len(parts)} parts")
        return found

    def critical_path(self, cost: Callable[[Operation], float]) -> tuple[float, list[Operation]]:
        """The dependent ops whose costs sum to most, and their sum: no machine is faster than that. Of paths that cost
        the same, the one whose ops come first."""
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
    # When it is needed: importing it takes 0.15 s. Any, since half of its functions have no types.
    return import_module("networkx")


def cycle_of(quotient: Quotient) -> list[int]:
    """The parts of a cycle of a quotient graph; none when the parts can run one after the other."""
    nx = _networkx()
    if nx.is_directed_acyclic_graph(quotient):
        return []
    return [source for source, _ in nx.find_cycle(quotient)]
