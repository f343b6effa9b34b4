"""The watchdog alone, in one process."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from lazytpu.distributed import watch as watch_module
from lazytpu.distributed.control import CollectiveError
from lazytpu.distributed.flight import ENTRIES_PER_GROUP, Entry, Flight
from lazytpu.distributed.turns import Collective
from lazytpu.distributed.watch import Watch
from lazytpu.options import options
from lazytpu.runtime.xla import client
from tests import zygote
from tests.distributed.ranks import ROOT


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the watchdogs of a test at its end."""
    watches: list[Watch] = []
    init = Watch.__init__

    def remember(self: Watch, *arguments: Any) -> None:
        watches.append(self)
        init(self, *arguments)

    monkeypatch.setattr(Watch, "__init__", remember)
    yield
    assert all(watch.close(time.monotonic() + 30) for watch in watches)


class BrokenControl:
    """Replaces the control plane: every group is broken."""

    def why_broken(self, group: str) -> str:
        return f"{group} is broken"

    def stuck(self, *collective: object) -> None:
        """Do nothing instead of polling ranks."""

    def why_gone(self) -> str | None:
        return None


def _launched(watch: Watch, group: str = "group", number: int = 0) -> Entry:
    """Return a launched collective of one member."""
    watch.flight.record(group, "line")
    entry = watch.flight.post(group, "line", number, f"all_reduce of {group}", [0])
    entry.reached()
    assert not watch.begin(entry)
    return entry


def test_a_collective_is_settled_once():
    watch = Watch(Flight(), {"group": 60.0}, str, 0)
    status = client.to_device(torch.ones(1).numpy())
    client.wait([status])
    for _ in range(50):
        entry = _launched(watch)
        entry.status = status
        threads = [threading.Thread(target=watch._settle, args=(entry,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert entry.state == "done"
    assert not watch.flight.flying


def test_collectives_before_their_launch_are_given_up():
    watch = Watch(Flight(), {"group": 60.0}, str, 0)
    entry = _launched(watch)
    assert watch.give_up("group") == [entry]
    assert entry.state == "failed"
    assert not watch.flight.flying
    assert watch.give_up("group") == []


def test_collectives_posted_long_ago_are_given_up():
    """Otherwise one would be launched after a failed one, and meet another collective of the other ranks."""
    flight = Flight()
    watch = Watch(flight, {"group": 60.0}, str, 0)
    entries = [flight.post("group", "line", i, "all_reduce", (0, 1)) for i in range(ENTRIES_PER_GROUP + 2)]
    flight.waiting["group"].extend(entries)
    watch.begin(entries[0])
    assert watch.give_up("group") == entries
    assert not flight.flying
    assert not flight.waiting


def test_a_launch_in_a_group_just_broken_raises():
    watch = Watch(Flight(), {"group": 60.0}, str, 0)
    watch.broken("group", "rank 1 is gone")
    with pytest.raises(CollectiveError, match="rank 1 is gone"):
        _launched(watch)
    assert len(watch.give_up("group")) == 1


ON_A_TPU = """
from lazytpu.distributed.flight import Flight
from lazytpu.distributed.turns import Collective
from lazytpu.distributed.watch import Watch
from lazytpu.runtime.xla import client
from tests.distributed.test_watch import _launched
client.platform = lambda: "tpu"
watch = Watch(Flight(), {"group": 60.0}, str, 0)
watch.broken("other", "rank 2 is gone")
entry = _launched(watch)
watch.broken("other", "rank 2 is gone")
print("here", flush=True)
watch.broken("group", "rank 1 is gone")
print("not here", flush=True)
"""


def test_a_running_collective_on_a_tpu_ends_the_process():
    done = zygote.run(["-c", ON_A_TPU], cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "here\n")
    assert "group 'group' is broken on rank 0: rank 1 is gone" in done.stderr
    assert "all_reduce of group at line cannot be taken back: this process ends" in done.stderr


LEFT = """
import time
from lazytpu.distributed import watch as module
from lazytpu.distributed.flight import Flight
from lazytpu.runtime.jobs.links import Links
from tests.distributed.test_watch import _launched
module.TICK, module.MAX_POLLS = 0.01, 20
watch = module.Watch(Flight(), {"group": 60.0}, str, 0)
entry = _launched(watch)
watch._links[frozenset([0])] = links = Links()
watch.broken("group", "rank 1 is gone")
links.complete()
time.sleep(1)
print("the device is at another run", flush=True)
watch.oldest, links._own = lambda: entry.status, None
time.sleep(1)
print("it still connects", flush=True)
links.complete()
time.sleep(60)
print("not here", flush=True)
"""


def test_a_collective_without_connections_ends_the_process():
    done = zygote.run(["-c", LEFT], cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "the device is at another run\nit still connects\n")
    assert "all_reduce of group at line does not end: this process ends. rank 1 is gone" in done.stderr


def test_the_reason_names_the_group_of_the_failed_collective():
    """Another group is broken, too, and one of its collectives never ended."""
    watch = Watch(Flight(), dict.fromkeys(("first", "second", "third"), 60.0), str, 0)
    watch.control = BrokenControl()  # pyright: ignore[reportAttributeAccessIssue]
    _launched(watch, "first")
    watch.give_up("first")
    _launched(watch, "second").status = client.to_device(torch.ones(1).numpy())
    _launched(watch, "third")
    watch._launching.entry = watch.flight.flying[0]
    assert watch.explain("Gloo failed") == "all_reduce of second at line: second is broken\n(Gloo failed)"
    watch.give_up("second")
    assert watch.explain("Gloo failed").startswith("all_reduce of third at line: ")
    assert watch.explain("out of memory") == "out of memory"


def test_other_groups_of_the_same_ranks_report_why_they_end():
    watch = Watch(Flight(), {"first": 60.0}, str, 0)
    _launched(watch, "first")
    watch.broken("first", "rank 1 has stopped")
    assert watch.why_cut("first", [0]) == "rank 1 has stopped"
    reason = watch.why_cut("second", [0])
    assert reason is not None
    assert "since group 'first' of the same ranks is broken" in reason
    assert reason.endswith("rank 1 has stopped")
    assert watch.why_cut("third", [0, 1]) is None


class GoneControl(BrokenControl):
    """Replaces the control plane: the helper is gone."""

    def why_gone(self) -> str:
        return "the helper is gone"


def test_collectives_may_end_for_some_time_after_the_end_of_the_helper(monkeypatch: pytest.MonkeyPatch):
    """Another rank may not have got the answer, and not come."""
    monkeypatch.setattr(watch_module, "LAST", 0.5)
    watch = Watch(Flight(), {"group": 60.0}, str, 0)
    watch.control = GoneControl()  # pyright: ignore[reportAttributeAccessIssue]
    _launched(watch)
    time.sleep(0.3)
    assert watch.why_cut("group", [0]) is None
    end = time.monotonic() + 10
    while watch.why_cut("group", [0]) is None and time.monotonic() < end:
        time.sleep(0.05)
    assert watch.why_cut("group", [0]) == "all_reduce of group at line does not end: the helper is gone"


def test_a_collective_that_took_too_long_is_forgotten_when_it_has_ended():
    watch = Watch(Flight(), {"group": 0.0}, str, 0)
    watch.control = BrokenControl()  # pyright: ignore[reportAttributeAccessIssue]
    entry = _launched(watch)
    watch._too_long(entry)
    assert watch._reported
    entry.status = client.to_device(torch.ones(1).numpy())
    watch._settle(entry)
    assert not watch._reported
    assert not watch.flight.flying


def test_a_report_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(options, "dump", str(tmp_path))
    (tmp_path / "collectives-0.txt").mkdir()
    watch = Watch(Flight(), {}, str, 0)
    watch.dump("first", "why")
    assert f"cannot write this report to {tmp_path}" in capsys.readouterr().err
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    watch.dump("second", "why")


def test_two_threads_may_mark_a_call_done():
    """The caller's thread, and the thread that receives the helper's messages."""
    entry = Flight().post("group", "line", 0, "barrier", (0, 1))
    turn = Collective(cast("Any", None), entry, 0)
    seen = threading.Barrier(2)

    class Seen(Entry):
        __slots__ = ()

        @property
        def state(self) -> str:
            state = super().state
            seen.wait(10)
            return state

    entry.__class__ = Seen
    listener = threading.Thread(target=turn.met)
    listener.start()
    turn.met()
    listener.join()
    entry.__class__ = Entry
    assert (entry.state, len(entry.times)) == ("done", 5)
