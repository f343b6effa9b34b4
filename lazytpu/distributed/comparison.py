"""The comparison of collectives between the ranks of a job, in the helper process (see `helper`).

A rank posts the collectives of a cut in one message. Most ranks post equal bytes, so a message is parsed once
(`Post.parsed`), and a group compares lists of signatures, not single calls. A post thus costs the same however many
ranks and collectives a job has, and a step of n ranks costs O(n). Equal posts of ranks behind a relay come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lazytpu.distributed.ledger import ENDED, Call, Group, Ledger, Order, Post, Window, from_ranges
from lazytpu.distributed.wide import Wides

PATIENCE = 0.05  # seconds before a member is notified that others wait for it
ANSWER = 1.0  # seconds in which a member has to report its state
RULE = "Every rank of a group has to call the same collectives, with equal dtypes and shapes, in the same order."
ABOUTS = 3  # descriptions of cuts that are kept, if ranks differ
SHOWN = 8  # ranks that an error lists of each kind


class Arbiter:
    """Decides for a job of `size` ranks which collectives are launched. `tell` sends a message to ranks, and `later`
    calls a function after some seconds.

    1. A collective of a group is agreed once all members have posted it with equal signatures, and it is the first
       launch of each member among the groups of the same members, which share connections.
    2. A group breaks for good when its members disagree, or one is lost or gives up. All members get the same text, and
       before it every collective that is agreed.
    3. Launches of broken groups do not count in the order of the others.
    4. A cut is launched as one program (it is "whole") if all members have posted it in one message, with equal marks,
       and nothing in it is broken. This is decided once, when its first collective is agreed, and the members get it
       in the same message. Otherwise all members launch its pieces. `Wides` decides on a cut whose groups have
       different members.
    """

    def __init__(
        self,
        size: int,
        tell: Callable[[Sequence[int], Any], None],
        later: Callable[[float, Callable[[], None]], object],
    ):
        self.tell = tell
        self.later = later
        self.groups: dict[str, Group] = {}
        self.orders: dict[frozenset[int], Order] = {}  # by the members of groups
        self.left: dict[int, str] = {}  # lost ranks, and how they ended
        self.at: dict[int | None, Call | str] = {}  # the last call or message of each rank, over all groups
        self._freed: dict[str, None] = {}  # groups to compare, since another one broke or a cut is decided
        self.wides = Wides(size, self.orders, self.groups, self._later, self._free)

    # -- messages of ranks

    def post(self, ranks: Sequence[int], post: Post) -> None:
        """Compare collectives that ranks are about to launch, all of them the same ones."""
        names = list(post.calls)
        if len(ranks) > 1 and not all(self.groups[name].is_level(ranks) for name in names if name in self.groups):
            for rank in ranks:
                self.post((rank,), post)
            return
        for name in names:
            self._admit(ranks, name, post)
        working = [name for name in names if self.groups[name].broken is None]
        for name in working:
            group, (signatures, lines) = self.groups[name], post.calls[name]
            group.calls.write(ranks, signatures, lines)
            last = signatures[-1], lines[-1]
            for rank in ranks:
                self.at[rank] = group.last[rank] = last
        if post.launches:
            self._order(ranks, post, working)
        self._compare(working)

    def give_up(self, rank: int, name: str, seconds: float) -> None:
        """Break a group in which a rank has waited for the others as long as the timeout."""
        group = self.groups[name]
        missing = group.missing()
        if group.broken is None and missing and group.calls.has_written(rank):
            signature, line = group.calls.first(rank)
            waited = f"rank {rank} waited {seconds:g} s in collective {group.agreed} of group {name!r}, {signature}"
            lasts = {late: shown(group.last[late]) if late in group.last else "none" for late in missing[: 8 * SHOWN]}
            listed = [f"rank {late} (its last: {last}){self.where(late, last)}" for late, last in lasts.items()]
            if len(missing) > len(listed):
                listed.append(f"and {len(missing) - len(listed)} more")
            text = (
                f"{waited} at {line}, for {', '.join(listed)}. {RULE} Or the timeout of the process group is too short."
            )
            self._break(name, group, text)
            self._compare(())

    def fail(self, name: str, members: str, text: str) -> None:
        """Break a group in which a rank will not launch a collective that it has announced, or was about to."""
        group = self._group(name, members, launches=True)
        if group.broken is None:
            self._break(name, group, text)
        self._compare(())

    def stuck(self, rank: int, name: str, number: int, seconds: float, call: str) -> None:
        """Ask the members of a group for their states: a rank has been in a collective longer than the timeout."""
        group = self.groups.get(name)
        if group is None or group.broken is not None or group.answers is not None:
            return
        group.answers = {rank: "is in it"}
        self.tell([member for member in group.members if member != rank], {"state": name, "number": number})
        start = f"rank {rank} is in collective {number} of group {name!r}, {call}, for {seconds:g} s"
        self.later(ANSWER, lambda: self._judge(name, group, start))

    def answer(self, rank: int, name: str, text: str) -> None:
        """Take the state of a member."""
        if (answers := self.groups[name].answers) is not None:
            answers[rank] = text

    def leaves(self, rank: int, how: str) -> None:
        """Break the groups of a rank that launches nothing more."""
        self.left[rank] = how
        self.wides.abandon(for_good=True)
        for name, group in reversed(self.groups.items()):  # a group before its start, whose text has fewer details
            self._without(rank, name, group)
        self._compare(())

    def where(self, rank: int | None, known: str = "") -> str:
        """Return a rank's last call for an error's text; empty if it equals `known`, which that text has already."""
        at = shown(self.at[rank]) if rank in self.at else known
        return "" if at == known else f", which has come to: {at}"

    # -- decisions

    def _group(self, name: str, members: str | None, *, launches: bool) -> Group:
        """Return a group, created at its first use."""
        group = self.groups.get(name)
        if group is None:
            assert members is not None
            ranks = from_ranges(members)
            key = frozenset(ranks)
            order = self.orders.get(key)
            if order is None:
                order = self.orders[key] = Order(len(self.orders), ranks, Ledger(ranks))
            group = self.groups[name] = Group(members, ranks, order, launches, Ledger(ranks))
            for rank in self.left:
                self._without(rank, name, group)
        return group

    def _admit(self, ranks: Sequence[int], name: str, post: Post) -> None:
        """Create a group that is new, and compare the members that ranks know."""
        ranges = post.members.get(name)
        group = self._group(name, ranges, launches=post.launches)
        if group.broken is None and ranges not in (None, group.ranges):
            line = post.calls[name][1][0]
            listed = f"rank {ranks[0]}: {_listed(from_ranges(ranges))} at {line}; others: {_listed(group.members)}"
            self._break(name, group, f"the ranks disagree about the members of group {name!r}: {listed}", cut=False)
        if group.broken is not None:
            self.tell(ranks, {"broken": name, "text": group.broken})

    def _order(self, ranks: Sequence[int], post: Post, working: Sequence[str]) -> None:
        """Add the launches of a post to the orders of its groups."""
        orders = {id(order): order for name in working if (order := self.groups[name].order)}
        if len(orders) > 1 and len(working) == len(post.calls):
            for rank in ranks:
                self.wides.add(rank, post)
        for order in orders.values():
            names = post.groups
            if len(orders) > 1 or len(working) < len(post.calls):
                chosen = {name for name in working if self.groups[name].order is order}
                names = [name for name in names if name in chosen]
            if (post.mark or post.about) and names is post.groups:
                window = order.windows.setdefault(order.launches.at[ranks[0]], Window(names))
                if post.mark:
                    window.marks.setdefault(post.mark, []).extend(ranks)
                if len(window.abouts) < ABOUTS:
                    window.abouts.setdefault((post.about, bool(post.mark)), ranks[0])
            order.launches.write(ranks, names, names)

    def _is_whole(self, order: Order, window: Window) -> bool:
        """Return whether all members launch a window, whose first collective is agreed, as one program."""
        count = len(window.groups)
        return (
            [len(ranks) for ranks in window.marks.values()] == [len(order.members)]
            and order.launches.is_equal(count)
            and order.launches.texts[:count] == window.groups
            and all(self.groups[name].calls.is_equal(window.groups.count(name)) for name in set(window.groups))
        )

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after some seconds, and compare the groups that it frees."""

        def compare() -> None:
            call()
            self._compare(())

        self.later(seconds, compare)

    def _free(self, names: Iterable[str]) -> None:
        """Compare these groups next."""
        self._freed.update(dict.fromkeys(names))

    def _compare(self, names: Iterable[str]) -> None:
        """Notify the members of these groups of the collectives that are agreed now, or break the groups. Then do the
        same for the groups that come first once others are broken."""
        while names := dict.fromkeys((*names, *self._freed)):
            self._freed.clear()
            groups = {name: group for name in names if (group := self.groups[name]).broken is None}
            while any(self._agrees(name, group) for name, group in groups.items()):
                pass
            for group in groups.values():
                self._compare_orders(group.order)
            for name, group in groups.items():
                self._report_agreed(name, group)
                self._remind_later(name, group)
            names = ()

    def _agrees(self, name: str, group: Group) -> bool:
        """Advance a group by a collective that all members have posted, or break it if they differ. Return whether it
        did."""
        calls, launches = group.calls, group.order.launches
        if group.broken is not None or not calls.is_complete():
            return False
        if calls.start in calls.others:
            self._break(name, group, _disagreement(name, group), cut=False)
            return True
        if group.launches:
            if launches.texts[0] != name or launches.start in launches.others:
                return False
            if (held := self.wides.holds(group.order)) is not False:
                return held is None
            window = group.order.windows.pop(launches.start, None)
            if window is not None and self._is_whole(group.order, window):
                group.whole.append(group.agreed)
            elif window is not None and window.marks:
                abouts = [(rank, about, marked) for (about, marked), rank in window.abouts.items()]
                group.split.append((group.agreed, *abouts))
            launches.remove_first()
        calls.remove_first()
        return True

    def _compare_orders(self, order: Order) -> None:
        """Break the groups whose members launch collectives of different groups first."""
        launches = order.launches
        if launches.start in launches.others:
            writers = [rank for rank in order.members if launches.has_written(rank)]
            first = {rank: launches.first(rank)[0] for rank in writers}
            text = _other_orders({rank: (name, self.groups[name].calls.first(rank)) for rank, name in first.items()})
            for name in dict.fromkeys(first.values()):
                self._break(name, self.groups[name], text, cut=False)

    def _report_agreed(self, name: str, group: Group) -> None:
        """Notify all members of a group of its agreed collectives."""
        if group.agreed > group.reported:
            group.reported = group.agreed
            verdicts = {kind: each for kind, each in (("whole", group.whole), ("split", group.split)) if each}
            self.tell(group.members, {"agreed": name, "count": group.agreed, **verdicts})
            group.whole, group.split = [], []

    def _remind_later(self, name: str, group: Group) -> None:
        """Notify the members that are missing in a while, unless all have come by then."""
        if group.broken is None and group.calls.texts and not group.is_reminding:
            group.is_reminding, number = True, group.agreed
            self.later(PATIENCE, lambda: self._remind(name, group, number))

    def _remind(self, name: str, group: Group, number: int) -> None:
        group.is_reminding = False
        if group.agreed != number:
            self._remind_later(name, group)
        elif group.broken is None:
            self.tell(group.missing(), {"wanted": name, "number": number})

    def _judge(self, name: str, group: Group, start: str) -> None:
        answers, group.answers = group.answers or {}, None
        silent = "does not answer: it has stopped, or is cut off"
        states = [f"rank {rank} {answers.get(rank, silent)}" for rank in group.members[: 8 * SHOWN]]
        if group.broken is None:
            self._break(name, group, f"{start}; {'; '.join(states)}. Or the timeout of the group is too short.")
        self._compare(())

    def _without(self, rank: int, name: str, group: Group) -> None:
        """Break a group if a lost rank is a member."""
        if rank in group.calls.at and group.broken is None:
            how = self.left[rank]
            last = group.last.get(rank)
            where = "before any collective of the group" if last is None else f"after {shown(last)}"
            text = f"rank {rank} {how}, {where}: group {name!r} cannot go on without it"
            self._break(name, group, text, cut=how != ENDED, quiet=how == ENDED)

    def _break(self, name: str, group: Group, text: str, cut: bool = True, quiet: bool = False) -> None:
        """Break a group for good. `cut`: its running collectives may never end; after a disagreement, or a regular end
        of a rank, the agreed ones do. `quiet`: the regular end of a rank, which is no fault unless more is called."""
        self._report_agreed(name, group)  # first, so that an agreed collective is launched by all ranks
        group.broken = text
        self._drop_launches(name, group.order)
        self.tell(group.members, {"broken": name, "text": text, "cut": cut, "quiet": quiet})

    def _drop_launches(self, name: str, order: Order) -> None:
        """Remove the launches of a broken group from an order."""
        launches = order.launches
        groups = {*launches.texts, *(text for texts in launches.others.values() for text in texts.values())}
        if name in groups:
            self.wides.abandon()
            order.launches = Ledger(order.members)
            order.windows.clear()  # none of them is decided
            for rank in order.members:
                names = [launch for launch in launches.written(rank) if launch != name]
                order.launches.write((rank,), names, names)
            self._free(groups - {name})


def shown(call: Call | str) -> str:
    """Return a call or message for an error's text."""
    return call if isinstance(call, str) else f"{call[0]} ({call[1]})"


def _listed(ranks: Sequence[int]) -> str:
    """Return ranks for an error's text, which leaves out the middle of a long list."""
    if len(ranks) <= 8 * SHOWN:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[:SHOWN]))}, ..., {ranks[-1]}], {len(ranks)} ranks"


def _other_orders(calls: dict[int, tuple[str, Call]]) -> str:
    """Return the error when groups of the same ranks come in different orders. `calls` has each rank's first call."""
    first = {name: rank for rank, (name, _) in reversed(calls.items())}  # a rank for each group
    ranks = [*first.values(), *(rank for rank in calls if rank not in first.values())][:SHOWN]
    listed = "; ".join(
        f"rank {rank}: first {signature} at {line} in group {name!r}"
        for rank, (name, (signature, line)) in ((rank, calls[rank]) for rank in sorted(ranks))
    )
    return (
        f"the ranks disagree about the order of groups with the same ranks: {listed}. Such groups share connections: "
        "call their collectives in the same order on every rank, and not from several threads. Nothing was launched."
    )


def _disagreement(name: str, group: Group) -> str:
    """Return the error for different calls: each distinct call, with its ranks and a source line."""
    ranks_of: dict[str, list[int]] = {}
    for rank in group.members:
        ranks_of.setdefault(group.calls.first(rank)[0], []).append(rank)
    listed = [f"the ranks disagree about collective {group.agreed} of group {name!r}:"]
    for signature, ranks in ranks_of.items():
        numbers = ", ".join(map(str, ranks[:SHOWN])) + (", ..." if len(ranks) > SHOWN else "")
        line = group.calls.first(ranks[0])[1]
        listed.append(f"rank{'s' if len(ranks) > 1 else ''} {numbers}: {signature} at {line}")
    return "\n  ".join(listed) + f"\n{RULE} Nothing was launched."
