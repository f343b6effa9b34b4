"""Cuts with collectives among different ranks, such as those of the rows and columns of a mesh: all ranks of the job
launch them as one program, or all run pieces.

No rank of such a cut knows whether the ranks outside of its groups have come to it. So its collectives are held until
every rank of the job has posted a cut with the same mark, for at most HOLD seconds after the first could be launched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lazytpu.distributed.ledger import Group, Order, Post

HOLD = 0.25  # seconds: a rank that is later makes the others run pieces, and ask less often if it is so at each step
ABOUTS = 3  # descriptions of cuts that are kept, if ranks differ
KEPT = 1024  # refused places that are kept at least

Place = tuple[int, int]
"""A launch: the number of its order, and its number in that."""


@dataclass(slots=True, eq=False)
class Wide:
    """A cut of one rank. `calls` has the groups of its collectives, by the number of their order, and `first` the group
    and the number of the first one. `before` has, by order, how many launches the rank had posted before, and `places`
    its first launch in each order."""

    rank: int
    mark: str
    about: str
    calls: dict[int, list[str]]
    first: tuple[str, int]
    before: dict[int, int]
    places: list[Place]


class Wides:
    """The marked cuts of the ranks of a job with collectives among different ranks. `orders` and `groups` are those of
    the arbiter, `later` calls a function after some seconds, and `free` gets groups that are no longer held.

    1. A cut is launched as one program if each rank's first undecided cut has the same mark, and all that any rank has
       posted before its cut is agreed, and nothing after it. This is decided once for all ranks, and the collectives
       are then agreed at once.
    2. While that may still come, the first collectives of a cut are not agreed. After HOLD seconds the ranks run
       pieces: a rank that is not a member of a group never delays it longer.
    3. Where one rank runs pieces, so do all other members of the group, also those that come later.
    """

    def __init__(
        self,
        size: int,
        orders: Mapping[frozenset[int], Order],
        groups: Mapping[str, Group],
        later: Callable[[float, Callable[[], None]], object],
        free: Callable[[Iterable[str]], None],
    ):
        self.size = size
        self.orders = orders
        self.groups = groups
        self.later = later
        self.free = free
        self._orders_of: dict[int, list[Order]] = {}  # by rank, of the first `_known` orders
        self._known = 0
        self._pending: dict[int, deque[Wide]] = {}  # undecided cuts by rank, oldest first
        self._held: dict[Place, dict[Wide, None]] = {}  # the undecided cuts that begin at each place
        self._refused: set[Place] = set()
        self._kept = KEPT  # refused places before those in the past are dropped
        self._awaited: list[Wide] | None = None  # first cuts when the timer began; None while no timer runs
        self._closed = False

    def add(self, rank: int, post: Post) -> None:
        """Note the cut of a post whose collectives are among different ranks; its launches are not in the orders
        yet."""
        if not (post.mark or post.about):
            return
        calls: dict[int, list[str]] = {}
        for name in post.groups:
            calls.setdefault(self.groups[name].order.number, []).append(name)
        first = post.groups[0]
        number = self.groups[first].calls.at[rank] - len(post.calls[first][0])
        if len(self.orders) > self._known:
            for order in list(self.orders.values())[self._known :]:
                for member in order.members:
                    self._orders_of.setdefault(member, []).append(order)
            self._known = len(self.orders)
        before = {order.number: order.launches.at[rank] for order in self._orders_of[rank]}
        places = [(number, before[number]) for number in calls]
        cut = Wide(rank, post.mark, post.about, calls, (first, number), before, places)
        if self._closed or not post.mark or not self._refused.isdisjoint(cut.places):
            self._refuse([cut])
            return
        self._pending.setdefault(rank, deque()).append(cut)
        for place in cut.places:
            self._held.setdefault(place, {})[cut] = None

    def holds(self, order: Order) -> bool | None:
        """Return whether the first launch of an order must wait for the decision on a cut; None if one was just made,
        after which collectives may have been agreed."""
        place = order.number, order.launches.start
        if place not in self._held:
            return False
        if len(self._held[place]) < len(order.members):  # all have posted it, one in a cut of this group alone
            for rank in order.members:
                while any(place in cut.places for cut in self._pending.get(rank, ())):
                    self._refuse([self._pending[rank][0]])
            return None
        self._decide()
        if place not in self._held:
            return None
        if self._awaited is None:
            self._wait()
        return True

    def abandon(self, *, for_good: bool = False) -> None:
        """Refuse all cuts, since the numbers of launches change, or since a rank is lost (`for_good`)."""
        self._closed = self._closed or for_good
        while self._pending:
            self._refuse(self._first())
        self._refused.clear()

    def _first(self) -> list[Wide]:
        """Return the first undecided cut of each rank that has one."""
        return [cuts[0] for cuts in self._pending.values()]

    def _wait(self) -> None:
        self._awaited = self._first()
        self.later(HOLD, self._end_wait)

    def _end_wait(self) -> None:
        """Refuse cuts that have waited for HOLD seconds."""
        awaited, self._awaited = set(self._awaited or ()), None
        first = self._first()
        if awaited.intersection(first):
            self._refuse(first)
        elif first:
            self._wait()
        self.free(())

    def _decide(self) -> None:
        """Launch the first cut of each rank as one program, or refuse it, once that is certain."""
        if len(self._pending) < self.size:
            return
        first = self._first()
        by_rank = {cut.rank: cut for cut in first}
        gaps = [
            order.launches.start - by_rank[rank].before.get(order.number, 0)
            for order in self.orders.values()
            for rank in order.members
        ]
        if len({cut.mark for cut in first}) > 1 or max(gaps) > 0 or not self._is_equal(by_rank):
            self._refuse(first)
        elif min(gaps) == 0:  # otherwise what ranks have posted before is not agreed yet
            self._agree(first)

    def _is_equal(self, by_rank: Mapping[int, Wide]) -> bool:
        """Return whether the members of each group have the same collectives in their cuts, first ones included."""
        for order in self.orders.values():
            cuts = [by_rank[rank] for rank in order.members]
            names = cuts[0].calls.get(order.number)
            if any(cut.calls.get(order.number) != names for cut in cuts):
                return False
        places = {cut.first for cut in by_rank.values()}
        return all(by_rank[rank].first == place for place in places for rank in self.groups[place[0]].members)

    def _agree(self, first: list[Wide]) -> None:
        """Agree on all collectives of these cuts, if the members of each group have posted equal ones, and let all
        ranks launch them as one program."""
        calls = {number: names for cut in first for number, names in cut.calls.items()}
        orders = [(order, calls[order.number]) for order in self.orders.values() if order.number in calls]
        for order, names in orders:
            counts = {name: names.count(name) for name in names}
            equal = order.launches.is_equal(len(names)) and order.launches.texts[: len(names)] == names
            if not equal or not all(self.groups[name].calls.is_equal(count) for name, count in counts.items()):
                self._refuse(first)
                return
        for name, number in {cut.first for cut in first}:
            assert self.groups[name].agreed == number, "all that was posted before is agreed"
            self.groups[name].whole.append(number)
        for order, names in orders:
            for name in names:
                order.launches.remove_first()
                self.groups[name].calls.remove_first()
        for cut in first:
            self._drop(cut)

    def _refuse(self, cuts: list[Wide]) -> None:
        """Let the ranks run the pieces of cuts, and of those that begin where another rank runs pieces."""
        refused: dict[Wide, None] = {}
        found = deque(cuts)
        while found:
            cut = found.popleft()
            if cut in refused:
                continue
            refused[cut] = None
            new = [place for place in cut.places if place not in self._refused]
            self._refused.update(new)
            self._drop(cut)
            # A cut behind an undecided one of its rank is looked at once that one is dropped.
            others = [other for place in new for other in self._held.get(place, ())]
            for other in (*others, *list(self._pending.get(cut.rank, ()))[:1]):
                if self._pending[other.rank][0] is other and not self._refused.isdisjoint(other.places):
                    found.append(other)
        abouts: dict[tuple[str, bool], int] = {}
        for cut in refused:
            if len(abouts) < ABOUTS:
                abouts.setdefault((cut.about, bool(cut.mark)), cut.rank)
        listed = [(rank, about, marked) for (about, marked), rank in abouts.items()]
        for cut in refused:
            if cut.mark:
                self.groups[cut.first[0]].split.append((cut.first[1], *listed))
        if len(self._refused) > self._kept:
            starts = {order.number: order.launches.start for order in self.orders.values()}
            self._refused = {(number, at) for number, at in self._refused if at >= starts[number]}
            self._kept = max(KEPT, 2 * len(self._refused))

    def _drop(self, cut: Wide) -> None:
        """Remove a cut that is decided, and free its groups."""
        if self._pending.get(cut.rank, [None])[0] is cut:
            self._pending[cut.rank].popleft()
            if not self._pending[cut.rank]:
                del self._pending[cut.rank]
            for place in cut.places:
                del self._held[place][cut]
                if not self._held[place]:
                    del self._held[place]
        self.free(name for names in cut.calls.values() for name in names)
