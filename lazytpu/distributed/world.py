"""The job that this process belongs to: its helper, XLA's client of all processes, and what waits for other ranks."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from lazytpu.distributed import programs
from lazytpu.distributed.control import CollectiveError, Control
from lazytpu.distributed.flight import Entry, Flight
from lazytpu.distributed.recorded import cut_collectives, pending
from lazytpu.distributed.starting import own_address, start_helper
from lazytpu.distributed.turns import Collective
from lazytpu.distributed.watch import Watch
from lazytpu.engine.cutting.agreement import Agreement, Call, Turn
from lazytpu.engine.cutting.deferral import Deferral
from lazytpu.engine.cutting.launcher import Launcher
from lazytpu.engine.engine import Engine
from lazytpu.frontend import activation
from lazytpu.frontend.lines import backward_line, call_site, user_line
from lazytpu.frontend.tensors import recorders
from lazytpu.options import options
from lazytpu.runtime.errors import EXPLANATIONS, RunError
from lazytpu.runtime.jobs import multiprocess
from lazytpu.runtime.xla import chips
from lazytpu.trace.cuts import PEER
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State

ALL = "the job"  # in place of the name of a group
STANDSTILL = 0.1  # seconds without a record before a trace is cut because others wait for it: a busy core takes 0.05
LEAVING = 1.0  # seconds in which the threads of a job that is left have to stop
BUSY = 10.0  # seconds, but at most half of the group's timeout, after which it is cut though more is being recorded


class World(Agreement):
    """This process as rank `rank` of `size`, in the job that knows the `token`. `seconds` has the timeout of each
    group."""

    def __init__(self, rank: int, size: int, host: str, port: int, token: str):
        self.rank = rank
        self.size = size
        self.token = token
        self.seconds: dict[str, float] = {}
        self.patience = 0.0  # the timeout of the default group
        self._posted: Counter[str] = Counter()
        self._compared: Counter[str] = Counter()  # of these, those that the helper was told, and counts
        self._made: Counter[str] = Counter()
        self.messages = count()  # to and from other ranks, one by one
        self._lives = 0  # of the default group
        self._host_orders: dict[str, Any] = {}
        self._counting = threading.Lock()  # held while these change: what was cut is launched on a thread of its own
        self.flight = Flight()
        self.watch = Watch(self.flight, self.seconds, self.report, rank)
        self._wanted: dict[str, tuple[int, float]] = {}  # by group: the number, and when a busy rank is cut
        self._asked = threading.Event()
        self._closed = threading.Event()
        self.programs: programs.Shared | None = None
        self.launcher = Launcher()
        self.deferral: Deferral | None = None
        self.control = Control(host, port, rank, token, programs.folder(), self)
        self.watch.control = self.control
        self._peers = threading.Thread(target=self._serve_others, name="lazytpu peers", daemon=True)
        self._peers.start()

    def post(self, calls: Sequence[Call]) -> Sequence[Turn]:
        """As `Agreement` says; all calls in one message."""
        with self._counting:
            return self._post(calls)

    def _post(self, calls: Sequence[Call]) -> Sequence[Turn]:
        turns: list[Turn] = []
        told: list[tuple[str, str, str, bool]] = []
        checked = options.collectives != "trusted"
        for call in calls:
            number = self._posted[call.group]
            self._posted[call.group] += 1
            entry = self.flight.post(call.group, call.line, number, call.signature, call.members)
            turns.append(Collective(self, entry, self._compared[call.group] if checked else None))
            self.flight.waiting[call.group].append(entry)
            if checked:
                self._compared[call.group] += 1
                told.append((call.group, entry.signature, str(entry.line), True))
        if told:
            self.control.post(told, {call.group: call.members for call in calls})
        return turns

    def is_awaited(self, groups: Iterable[str]) -> bool:
        """As `Agreement` says."""
        return self.flight.are_awaited(groups)

    def last(self, group: str) -> Entry | None:
        """The last collective of a group that was recorded."""
        entries = self.flight.last[group]
        return entries[-1] if entries else None

    def meeting(self, kind: str, group: str, members: Sequence[int], what: str) -> Collective:
        """Say that this process calls `what`, a call of a group by which nothing is launched: a barrier, say. `meet()`
        of what it gives waits for the others.

        Each kind of them is counted by itself, since a thread that saves a checkpoint may have its own barriers.
        """
        name = f"{kind} of {group}"
        self.seconds[name] = self.seconds[group]
        number = self._compared[name]
        self._compared[name] += 1
        entry = self.flight.post(name, str(call_site() or backward_line()), number, what, members)
        self.control.post([(name, entry.signature, entry.line, False)], {name: members})
        return Collective(self, entry, number)

    def gather(self, seconds: float) -> None:
        """Wait until all ranks have come, at most so many seconds: XLA's client would end the process when one does not
        connect. Raises CollectiveError naming those that have not; then this job is left."""
        self.seconds[ALL] = seconds
        try:
            self.meeting("start", ALL, range(self.size), "init_process_group").meet()
        except CollectiveError:
            self.close(time.monotonic() + LEAVING)
            self.control.leave()
            raise

    def is_short(self) -> bool:
        """Whether a rank is gone."""
        return self.control.why_broken(f"start of {ALL}") is not None

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """As `Agreement` says: those groups are broken, since other ranks would take the next collective for it."""
        if self.is_left():  # which is told in another way
            return
        try:
            self.launcher.drain()  # unless this is its thread: what was cut before is launched all the same
        finally:  # an interrupt is no reason to let the others wait
            self._give_up(groups, error)

    def _give_up(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        for group, members in groups.items():
            with self._counting:
                given_up = self.watch.give_up(group)
                self.flight.pending[group].clear()
            if given_up and self.control.why_broken(group) is None:
                lines = str(error).splitlines() or [""]
                what = f"{given_up[0].signature or 'a collective'} at {given_up[0].line}"
                why = f"{type(error).__name__}: {lines[0]}"
                self.control.fail(group, members, f"rank {self.rank} failed before {what}: {why}")

    def rehearsed(self, groups: Sequence[str]) -> None:
        """As `Agreement` says."""
        self.flight.withdraw_last(groups)

    def note(self, group: str) -> Entry:
        """A collective of a group is recorded: remember the user's line, since its record may be shared by several."""
        return self.flight.record(group, user_line() or backward_line())

    def report(self) -> str:
        """The last collectives of each group, and how far they came on this rank."""
        return f"collectives of rank {self.rank} of {self.size}\n{self.flight.text()}"

    def posted(self, group: str) -> int:
        """How many collectives of a group this process has launched, or is about to."""
        return self._posted[group]

    def name_of(self, group: str, is_default: bool) -> str:
        """The name of a new group, equal on all its members: a process may destroy its groups and make them again.

        All processes make the default group, and so count how often. Other groups may have had other members then.
        """
        if is_default:
            self._lives += 1
        name = group if self._lives == 1 else f"{group}.{self._lives}"
        self._made[name] += 1
        return name if self._made[name] == 1 else f"{name}-{self._made[name]}"

    def host_order(self, group: str, make: Callable[[], Any]) -> Any:
        """What of a group's collectives of CPU tensors waits for its members."""
        return self._host_orders.setdefault(f"CPU tensors of {group}", make())

    # -- what the helper tells

    def agreed(self, group: str, count: int) -> None:
        """All members of a group have come to so many of its collectives."""
        order = self._host_orders.get(group)
        if order is not None:
            order.agreed(count)

    def broken(self, group: str, text: str, cut: bool) -> None:
        """A group is broken; `cut` says that what runs in it may never end."""
        if self.is_left():  # and so do the others
            return
        if group in self._posted:  # else nobody waits here, or it is a barrier, whose error says all
            self.watch.broken(group, text) if cut else self.watch.dump(group, text)

    def state(self, group: str, number: int) -> str:
        """How far this rank is with a collective, for the error of another that waits in it."""
        entry = self.flight.of(group, number)
        if entry is None:
            return "has not called it, or long ago"
        return {"done": "has done it", "launched": "is in it as well"}.get(entry.state, f"has it {entry.state}")

    def has(self, name: str) -> bool:
        """Whether this rank has a program that another one lacks, or is at it; then it is shared."""
        return self.programs is not None and self.programs.offer(name)

    def wanted(self, group: str, number: int) -> None:
        """Others wait for this rank."""
        patience = min(BUSY, self.seconds.get(group, BUSY) / 2)
        self._wanted[group] = number, time.monotonic() + patience
        self._asked.set()

    def _serve_others(self) -> None:
        """When others wait for a collective that is recorded here, and recording stands still: cut. While ops are being
        recorded nothing is done at first, since the trace will be cut where it always is."""
        while True:
            self._asked.wait()
            self._asked.clear()  # before it looks: what others ask for meanwhile sets it again
            seen = [(each, each.state) for each in pending()]
            if self._closed.wait(STANDSTILL):
                return
            for group in list(self._wanted):
                asked = self._wanted.pop(group)
                if self._compared[group] <= asked[0]:
                    self._wanted.setdefault(group, asked)  # unless a later one has come meanwhile
            for each, state in seen if self._wanted else ():
                self._cut(each, state)
            if self._wanted:
                self._asked.set()

    def is_whole(self) -> bool:
        """Whether nothing has cut the connections to other ranks, or to the helper."""
        return self.control.is_connected() and not self.watch.has_cut()

    def raise_failed(self) -> None:
        """Raise what has failed in cuts that waited, if nobody was told."""
        if self.deferral is not None:
            self.deferral.raise_untold()

    def raise_untold(self) -> None:
        """Raise what has failed in what was launched, or was to be, if nobody was told."""
        assert self.deferral is not None
        inflight = self.deferral.inflight
        inflight.settle()
        self.deferral.finish()
        inflight.raise_first([each for each in inflight.errors if isinstance(each.error, RunError)])

    def is_left(self) -> bool:
        """Whether this process ends, or goes on in another job."""
        return self._closed.is_set()

    def _is_overdue(self) -> bool:
        """Whether others have waited for too long."""
        now = time.monotonic()
        return any(self._compared[group] <= number and now > end for group, (number, end) in list(self._wanted.items()))

    def close(self, end: float) -> bool:
        """At the end of the process: stop the threads that wait for XLA, and wait for that until `end`
        (time.monotonic()). Returns whether they have stopped. What was cut is still launched if the others come soon:
        the script may have failed after that."""
        self.launcher.drain(min(LEAVING, max(0.0, end - time.monotonic())))
        self._closed.set()
        self._asked.set()
        self.control.stop()
        launched = self.launcher.close(end)
        self._peers.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        offered = self.programs is None or self.programs.close(end)
        return self.watch.close(end) and launched and offered and not self._peers.is_alive()

    def _cut(self, recorder: Recorder, state: State) -> None:
        """Cut a recorder that is still at `state`, or has been busy for too long. Not while cuts before it wait, nor
        before the script was told of what failed there: this thread would be told in its place."""
        if self.deferral is None or self.launcher.is_busy or self.deferral.has_untold():
            return
        try:
            with recorder.cut_lock, self.deferral.serving():
                if recorder.state is state or self._is_overdue():
                    recorder.cut(PEER)
        except Exception:  # noqa: BLE001  (the script is told of it)
            return


def flush() -> None:
    """Cut the recorded collectives, before something that makes other ranks wait for this one, or this one for them.
    This does not wait for the others: they may come only after that. Raises what has failed, if nobody was told."""
    cut_collectives()
    if WORLD is not None:
        WORLD.raise_failed()


def finish() -> None:
    """Launch the recorded collectives, and wait until they are. Raises what has failed, if nobody was told."""
    cut_collectives()
    if WORLD is not None and WORLD.deferral is not None:
        WORLD.deferral.finish()


WORLD: World | None = None


def world(store: Any, rank: int, size: int, seconds: float, start: Callable[[], Engine]) -> World:
    """The job, which the first process group joins: rank 0 starts the helper, and publishes in torch's store where it
    is. Waits for all ranks, at most so many seconds; `start` gives the engine.

    After all groups were destroyed the next one joins anew. If all ranks are still in one job, with whole connections,
    that goes on. Otherwise they leave it for a new one, in which their number may be another.

    Raises RuntimeError when another rank or size is asked for while there are groups, or on a TPU, or the ranks do not
    come together.
    """
    if WORLD is not None and dist.is_initialized():
        return WORLD
    takes_chip = multiprocess.takes_chip(size) if WORLD is None else not multiprocess.can_join_again()
    if WORLD is not None and takes_chip:
        if (WORLD.rank, WORLD.size) == (rank, size):
            return WORLD
        raise RuntimeError(
            f"this process is rank {WORLD.rank} of {WORLD.size} for good, and cannot become rank {rank} of {size}: "
            "libtpu does not let go of its chip. Start a new process"
        )
    key = f"lazytpu/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    key = f"{key}/{store.add(f'{key}/joined/{rank}', 1)}"  # a store may see several jobs of the same processes
    address = _meeting(store, key, rank, size)
    if WORLD is not None and WORLD.token == address["token"]:
        return WORLD
    place = multiprocess.Place(address["service"], rank, size, own_address(address["host"]), seconds)
    programs.announce(PrefixStore(f"{key}/programs", store))
    if takes_chip:
        store.set(f"{key}/chip/{rank}", chips.address(place.host))
        multiprocess.take_chip(place, [store.get(f"{key}/chip/{each}").decode() for each in range(size)])
    activation.activate()
    engine = start()
    for each in recorders():
        each.cut(PEER, call_site())
    engine.cutter.order.drain()
    if WORLD is not None:
        WORLD.close(time.monotonic() + LEAVING)
    joined = World(rank, size, address["host"], address["control"], address["token"])
    joined.gather(seconds)
    if not takes_chip:
        multiprocess.join(place, engine.forget_programs)
    common = PrefixStore(f"{key}/programs", store)
    joined.programs = programs.install(common, rank, joined.control.seek, joined.is_short)
    _enter(joined, engine)
    return joined


def _meeting(store: Any, key: str, rank: int, size: int) -> dict[str, Any]:
    """The address of the job that the ranks are in together from now on: the one that they are in, if that is whole on
    all of them, else that of a new one."""
    current = WORLD if WORLD is not None and (WORLD.rank, WORLD.size) == (rank, size) and WORLD.is_whole() else None
    mine = "" if current is None else current.token
    if rank != 0:
        store.set(f"{key}/in/{rank}", mine)
    elif current is not None and all(store.get(f"{key}/in/{each}").decode() == mine for each in range(1, size)):
        store.set(key, json.dumps({"token": mine}))
    else:
        store.set(key, json.dumps(start_helper(own_address(os.environ.get("MASTER_ADDR", "localhost")), size)))
    return json.loads(store.get(key))


def _enter(joined: World, engine: Engine) -> None:
    """Be in this job, and no more in the one before."""
    global WORLD
    before, WORLD = WORLD, joined
    deferral = engine.cutter.order
    if not isinstance(deferral, Deferral):
        deferral = engine.cutter.order = Deferral(engine.cutter, joined.launcher)
    joined.deferral = deferral
    deferral.agreement, deferral.launcher = joined, joined.launcher
    joined.watch.oldest = deferral.inflight.oldest
    if before is None:
        atexit.register(_leave, os.getpid(), engine)
    else:
        engine.closing.remove(before.close)
        EXPLANATIONS.remove(before.watch.explain)
        before.control.leave()  # now that all are here: the others would take it for a fault
    engine.closing.insert(0, joined.close)  # first: the thread that serves others may cut something
    EXPLANATIONS.append(joined.watch.explain)


def _leave(process: int, engine: Engine) -> None:
    """At the end of the process: others may wait for what is recorded or runs here. After an error nothing is launched,
    and the others are told of a crash. If something fails, or has and nobody has seen it, the exit status says so."""
    if WORLD is None or os.getpid() != process or hasattr(sys, "last_type"):
        return
    try:
        finish()
        WORLD.raise_untold()
        WORLD.control.close()
    except BaseException:  # noqa: BLE001  (an error of a function at exit would leave the status 0, and so an interrupt)
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
