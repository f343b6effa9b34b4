"""The job of this process: its helper, XLA's client of all processes, and the work that other ranks wait for."""

from __future__ import annotations

import atexit
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
from lazytpu.distributed.last_words import send_last_words
from lazytpu.distributed.lattice import mesh_along
from lazytpu.distributed.recorded import cut_collectives, pending
from lazytpu.distributed.starting import meeting, own_address
from lazytpu.distributed.turns import Collective
from lazytpu.distributed.watch import Watch
from lazytpu.engine.cutting.agreement import NO_MARK, Agreement, Call, Mark, Turn
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

ALL = "the job"  # used in place of a group's name
# Seconds without a record before a trace is cut for waiting ranks. On a busy core, two records may be 0.05 s apart.
STANDSTILL = 0.1
LEAVING = 1.0  # seconds in which the threads of a job that is left have to stop
BUSY = 10.0  # seconds, at most half of the group's timeout, before a trace is cut though ops are still being recorded


class World(Agreement):
    """This process as rank `rank` of `size`, in a job. `seconds` has the timeout of each group."""

    def __init__(self, rank: int, size: int, address: Mapping[str, Any]):
        self.rank = rank
        self.size = size
        self.token: str = address["token"]
        self.seconds: dict[str, float] = {}
        self.patience = 0.0  # the timeout of the default group
        self._posted: Counter[str] = Counter()
        self._compared: Counter[str] = Counter()  # of the posted collectives, those that the helper compares
        self._names: Counter[str] = Counter()
        self.messages = count()  # counts the messages from and to other ranks
        self._lives = 0  # how often the default group was created
        self._host_orders: dict[str, Any] = {}
        self._counting = threading.Lock()  # guards these counters: cuts are launched on another thread
        self.flight = Flight()
        self.watch = Watch(self.flight, self.seconds, self.report, rank)
        # by group: the wanted number, and the time at which a busy recorder is cut
        self._wanted: dict[str, tuple[int, float]] = {}
        self._requested = threading.Event()
        self._closed = threading.Event()
        self.programs: programs.Shared | None = None
        self.launcher = Launcher()
        self.deferral: Deferral | None = None
        self.control = Control(address, rank, programs.folder(), self)
        self.watch.control = self.control
        self._peers = threading.Thread(target=self._serve_others, name="lazytpu peers", daemon=True)
        self._peers.start()

    def post(self, calls: Sequence[Call], mark: Mark = NO_MARK) -> Sequence[Turn]:
        """Implement `Agreement.post`. All calls are sent in one message."""
        with self._counting:
            return self._post(calls, mark)

    def _post(self, calls: Sequence[Call], mark: Mark) -> Sequence[Turn]:
        turns: list[Turn] = []
        announced: list[tuple[str, str, str]] = []
        checked = options.collectives != "trusted"
        for call in calls:
            number = self._posted[call.group]
            self._posted[call.group] += 1
            entry = self.flight.post(call.group, call.line, number, call.signature, call.members)
            turns.append(Collective(self, entry, self._compared[call.group] if checked else None))
            self.flight.waiting[call.group].append(entry)
            if checked:
                self._compared[call.group] += 1
                announced.append((call.group, entry.signature, str(entry.line)))
        if announced:
            self.control.post(announced, {call.group: call.members for call in calls}, mark=mark)
        return turns

    def mesh_of(self, members: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
        """Implement `Agreement.mesh_of`."""
        return mesh_along(members, self.size)

    def is_awaited(self, groups: Iterable[str]) -> bool:
        """Implement `Agreement.is_awaited`."""
        return self.flight.are_awaited(groups)

    def last(self, group: str) -> Entry | None:
        """Return the last recorded collective of a group, or None."""
        return next(reversed(self.flight.last[group]), None)

    def meeting(self, kind: str, group: str, members: Sequence[int], what: str) -> Collective:
        """Announce a call that launches nothing, such as a barrier; `meet()` of the result waits for the other members.
        The text `what` must be equal on all of them. Each `kind` is counted separately, since a thread that saves a
        checkpoint may have barriers of its own."""
        name = f"{kind} of {group}"
        self.seconds[name] = self.seconds[group]
        number = self._compared[name]
        self._compared[name] += 1
        entry = self.flight.post(name, str(call_site() or backward_line()), number, what, members)
        self.control.post([(name, entry.signature, entry.line)], {name: members}, launches=False)
        return Collective(self, entry, number)

    def gather(self, seconds: float) -> None:
        """Wait at most `seconds` until all ranks have joined: XLA's client would abort the process if one does not
        connect. Raises CollectiveError, naming the missing ranks; this process has left the job then."""
        self.seconds[ALL] = seconds
        try:
            self.meeting("start", ALL, range(self.size), "init_process_group").meet()
        except CollectiveError:
            self.close(time.monotonic() + LEAVING)
            self.control.leave()
            raise

    def is_short(self) -> bool:
        """Return whether a rank is lost."""
        return self.control.why_broken(f"start of {ALL}") is not None

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """Implement `Agreement.lost`: break these groups, as other ranks would take the next collective for the lost
        one."""
        if self.is_left():  # leaving is reported separately
            return
        try:
            # Launch the earlier cuts all the same, unless this is the launching thread itself.
            self.launcher.drain()
        finally:  # also after an interrupt, so that other ranks do not wait in vain
            self._give_up(groups, error)

    def _give_up(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        for group, members in groups.items():
            with self._counting:
                given_up = self.watch.give_up(group)
                self.flight.pending[group].clear()
            if given_up and self.control.why_broken(group) is None:
                lines = str(error).splitlines() or [""]
                call = f"{given_up[0].signature or 'a collective'} at {given_up[0].line}"
                why = f"{type(error).__name__}: {lines[0]}"
                self.control.fail(group, members, f"rank {self.rank} failed before {call}: {why}")

    def rehearsed(self, groups: Sequence[str]) -> None:
        """Implement `Agreement.rehearsed`."""
        self.flight.withdraw_last(groups)

    def note(self, group: str) -> Entry:
        """Add a flight entry for a collective being recorded, with the user's line; several calls may share its
        record."""
        return self.flight.record(group, user_line() or backward_line())

    def report(self) -> str:
        """Return the last collectives of each group, with their states on this rank."""
        self.watch.settle_ended()  # the watchdog polls five times a second: a result may be read before it does
        return f"collectives of rank {self.rank} of {self.size}\n{self.flight.text()}"

    def posted(self, group: str) -> int:
        """Return how many collectives of a group this process has launched, or is about to."""
        return self._posted[group]

    def name_of(self, group: str, is_default: bool) -> str:
        """Return the name of a new group, equal on all its members. A process may destroy its groups and create them
        again. All processes create the default group, so they agree on the count of its lives. Names of other groups
        are numbered within one life, since their members may differ."""
        if is_default:
            self._lives += 1
        name = group if self._lives == 1 else f"{group}.{self._lives}"
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}-{self._names[name]}"

    def host_order(self, group: str, make: Callable[[], Any]) -> Any:
        """Return the queue of a group's CPU collectives that wait for other members, created by `make`."""
        return self._host_orders.setdefault(f"CPU tensors of {group}", make())

    # -- `Listener`: messages from the helper

    def agreed(self, group: str, count: int) -> None:
        """All members of a group have posted its first `count` collectives."""
        order = self._host_orders.get(group)
        if order is not None:
            order.agreed(count)

    def broken(self, group: str, text: str, cut: bool) -> None:
        """A group cannot continue. `cut` says that its running collectives may never end."""
        if self.is_left():  # the other ranks see their own errors
            return
        # Otherwise no collective waits here, or the call is a barrier, whose error has the reason.
        if group in self._posted:
            self.watch.broken(group, text) if cut else self.watch.dump(group, text)

    def state(self, group: str, number: int) -> str:
        """Return how far this rank has come with a collective, for the error of a rank that hangs in it."""
        entry = self.flight.of(group, number)
        if entry is None:
            return "has not called it, or long ago"
        done = "has done it" if group in self._posted else "has begun it"  # gloo does not say when it is done
        return {"done": done, "launched": "is in it as well"}.get(entry.state, f"has it {entry.state}")

    def has(self, name: str) -> bool:
        """Return whether this rank will share a program that another one lacks."""
        return self.programs is not None and self.programs.offer(name)

    def wanted(self, group: str, number: int) -> None:
        """Other ranks wait for this one: let the serving thread cut the pending trace."""
        patience = min(BUSY, self.seconds.get(group, BUSY) / 2)
        self._wanted[group] = number, time.monotonic() + patience
        self._requested.set()

    def _serve_others(self) -> None:
        """Cut pending collectives that other ranks wait for, once recording pauses for STANDSTILL. While ops are still
        being recorded, wait for up to BUSY: the trace is likely to end where it always ends, and so to hit a known
        program."""
        while True:
            self._requested.wait()
            self._requested.clear()  # before the check: a message meanwhile sets it again
            seen = [(recorder_of, recorder_of.state) for recorder_of in pending()]
            if self._closed.wait(STANDSTILL):
                return
            for group in list(self._wanted):
                request = self._wanted.pop(group)
                if self._compared[group] <= request[0]:
                    self._wanted.setdefault(group, request)  # unless a later request has arrived
            for recorder_of, state in seen if self._wanted else ():
                self._cut(recorder_of, state)
            if self._wanted:
                self._requested.set()

    def is_whole(self) -> bool:
        """Return whether all connections to other ranks, and to the helper, work."""
        return self.control.is_connected() and not self.watch.has_cut()

    def raise_failed(self) -> None:
        """Raise an unreported failure of a cut that was deferred."""
        if self.deferral is not None:
            self.deferral.raise_untold()

    def raise_untold(self) -> None:
        """Raise an unreported failure of any launch, done or deferred."""
        assert self.deferral is not None
        inflight = self.deferral.inflight
        inflight.settle()
        self.deferral.finish()
        inflight.raise_first([failure for failure in inflight.errors if isinstance(failure.error, RunError)])

    def is_left(self) -> bool:
        """Return whether this process ends or joins another job."""
        return self._closed.is_set()

    def _is_overdue(self) -> bool:
        """Return whether other ranks have waited longer than their patience."""
        now = time.monotonic()
        return any(self._compared[group] <= number and now > end for group, (number, end) in list(self._wanted.items()))

    def close(self, end: float) -> bool:
        """Stop the threads that wait for XLA, at the end of the process. Returns whether they have stopped by `end`
        (time.monotonic()). Pending cuts are still launched if the other ranks arrive soon, since the script may have
        failed after them."""
        self.launcher.drain(min(LEAVING, max(0.0, end - time.monotonic())))
        self._closed.set()
        self._requested.set()
        self.control.stop()
        launched = self.launcher.close(end)
        self._peers.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        offered = self.programs is None or self.programs.close(end)
        return self.watch.close(end) and launched and offered and not self._peers.is_alive()

    def _cut(self, recorder: Recorder, state: State) -> None:
        """Cut a recorder for waiting ranks, if it is still at `state` or the ranks' patience is over. Do nothing while
        earlier cuts wait, or a failure is unreported: this thread would receive the error in place of the script."""
        if self.deferral is None or self.launcher.is_busy or self.deferral.has_untold():
            return
        try:
            with recorder.cut_lock, self.deferral.serving():
                if recorder.state is state or self._is_overdue():
                    recorder.cut(PEER)
        except Exception:  # noqa: BLE001 (the script gets the error)
            return


def flush() -> None:
    """Cut the recorded collectives, before a call in which this rank and others wait for each other. Does not wait for
    the other ranks, which may arrive only after that call. Raises an unreported failure."""
    cut_collectives()
    if WORLD is not None:
        WORLD.raise_failed()


def finish() -> None:
    """Launch the recorded collectives, and wait until they are launched. Raises an unreported failure."""
    cut_collectives()
    if WORLD is not None and WORLD.deferral is not None:
        WORLD.deferral.finish()


WORLD: World | None = None


def world(store: Any, rank: int, size: int, seconds: float, start: Callable[[], Engine]) -> World:
    """Return the job of this process, joining it for the first process group. `start` returns the engine.

    Rank 0 starts the helper and publishes its address in torch's store. Waits for all ranks, at most `seconds`. After
    all groups are destroyed, the next group joins anew: the same job if all ranks are in it with working connections,
    else a new one, in which their numbers may differ.

    Raises RuntimeError when another rank or size is requested while groups exist or on a TPU, or a rank does not join.
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
    key = f"{key}/{store.add(f'{key}/joined/{rank}', 1)}"  # one store may serve several jobs of the same processes
    usable = WORLD is not None and (WORLD.rank, WORLD.size) == (rank, size) and WORLD.is_whole()
    address = meeting(store, key, rank, size, WORLD.token if WORLD is not None and usable else "", seconds)
    if WORLD is not None and WORLD.token == address["token"]:
        return WORLD
    place = multiprocess.Place(address["service"], rank, size, own_address(address["host"]), seconds)
    programs.announce(PrefixStore(f"{key}/programs", store))
    if takes_chip:
        store.set(f"{key}/chip/{rank}", chips.address(place.host))
        multiprocess.take_chip(place, [store.get(f"{key}/chip/{number}").decode() for number in range(size)])
    activation.activate()
    engine = start()
    for recorder in recorders():
        recorder.cut(PEER, call_site())
    engine.cutter.order.drain()
    if WORLD is not None:
        WORLD.close(time.monotonic() + LEAVING)
    joined = World(rank, size, address)
    joined.gather(seconds)
    if not takes_chip:
        multiprocess.join(place, engine.forget_programs)
    common = PrefixStore(f"{key}/programs", store)
    joined.programs = programs.install(common, rank, joined.control.seek, joined.is_short)
    _enter(joined, engine)
    return joined


def _enter(joined: World, engine: Engine) -> None:
    """Make `joined` the current job, and leave the previous one."""
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
        send_last_words(lambda text: WORLD.control.raised(text) if WORLD is not None else None)
    else:
        engine.closing.remove(before.close)
        EXPLANATIONS.remove(before.watch.explain)
        before.control.leave()  # only now that all ranks have joined: before, the others would take it for a fault
    engine.closing.insert(0, joined.close)  # first, because the serving thread may still cut a trace
    EXPLANATIONS.append(joined.watch.explain)


def _leave(process: int, engine: Engine) -> None:
    """Finish the pending collectives at the end of the process, since other ranks may wait for them. After an error
    nothing is launched, and the other ranks see a crash. An unreported failure makes the exit status 1."""
    if WORLD is None or os.getpid() != process or hasattr(sys, "last_type"):
        return
    try:
        finish()
        WORLD.raise_untold()
        WORLD.control.close()
    except BaseException:  # noqa: BLE001 (an exception or interrupt of an exit handler would leave the status 0)
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
