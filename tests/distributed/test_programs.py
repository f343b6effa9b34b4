"""Ranks with separate caches: each program is compiled once in the job."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from lazytpu.distributed import programs
from lazytpu.distributed.common_store import CommonStore
from lazytpu.distributed.programs import Shared
from lazytpu.runtime.cache import peers
from lazytpu.runtime.cache import programs as cached
from lazytpu.runtime.cache.store import Store
from tests import zygote
from tests.distributed.ranks import ROOT, environment, free_port

KEY = "ab" * 16
SCRIPT = """
import torch, torch.distributed as dist, lazytpu
from lazytpu.engine.compiling import handing
from lazytpu.runtime.cache import programs
from tests.compiling import QUICK
programs.OPTIONS.update(QUICK)
dist.init_process_group()
x = torch.ones(4, device="tpu") * 2
dist.all_reduce(x)
assert x.tolist() == [4.0] * 4
dist.barrier()
handing.LEAST = 0.0  # a program that the helper process compiles
assert (x.sin().cos() + 1).sum().item() > 4
dist.barrier()
print("compiled", lazytpu.metrics()["compiles"])
"""


def launch(folder: Path) -> tuple[list[int], list[set[str]]]:
    """Run the script on two ranks with separate folders. Returns the compilations of each, and the programs in its
    folder."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    port = free_port()
    ranks = [
        zygote.Process(
            [str(script)],
            env=environment(rank, 2, port) | {"LAZYTPU_CACHE_DIR": str(folder / str(rank)), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(120) for rank in ranks]
    assert [rank.wait() for rank in ranks] == [0, 0], texts
    compiled = [int(printed.split("compiled ")[1]) for printed, _ in texts]
    return compiled, [{path.name for path in (folder / str(rank)).rglob("*.program")} for rank in range(2)]


def test_a_rank_loads_programs_that_the_other_has_or_compiles(tmp_path: Path):
    compiled, stored = launch(tmp_path)
    assert stored[0] == stored[1]
    assert sum(compiled) == len(stored[0]) >= 3
    shutil.rmtree(tmp_path / "0")  # like a machine that is new to the job
    compiled, again = launch(tmp_path)
    assert (sum(compiled), again) == (0, stored)


class Job:
    """Two ranks in this process, each with a folder; one rank is active."""

    def __init__(self, common: Any, folder: Path, patch: pytest.MonkeyPatch):
        self.patch = patch
        self.ranks = [Shared(common, 2, rank, self.seek) for rank in range(2)]
        self.stores = [Store(folder / str(rank)) for rank in range(2)]
        self.asked: list[tuple[str, int | None]] = []

    def turn(self, rank: int) -> Store:
        """Make a rank, with this folder, the active one."""
        self.at_work = rank
        self.patch.setattr(peers, "PEERS", [self.ranks[rank]])
        for module in (peers, programs):
            self.patch.setattr(module, "store", lambda: self.stores[rank])
        return self.stores[rank]

    def seek(self, name: str, seconds: float, of: int | None) -> bool:
        """Replace `Control.seek`: ask the other rank."""
        self.asked.append((name, of))
        rank = self.at_work
        self.turn(1 - rank)
        offers = self.ranks[1 - rank].offer(name)
        assert self.ranks[1 - rank].close(time.monotonic() + 10)
        self.turn(rank)
        return offers

    def ask(self, rank: int, key: str = KEY) -> bool:
        """Return whether a rank gets a program from the other one. It compiles none."""
        self.turn(rank)
        with peers.sought("program", key) as entry:
            return entry


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    common = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    monkeypatch.setattr(programs, "AGAIN", 0.1)
    yield Job(common, tmp_path, monkeypatch)
    del common  # the server, until now


def test_bytes_go_from_one_folder_to_the_other(job: Job):
    mine = job.turn(0)
    code = bytes(range(256)) * (9 << 12)  # 9 MiB: more than the store's limit for one value
    with peers.sought("program", KEY) as sought:
        assert not sought, "nobody has it: it is for this rank to make"
        mine.put("program", KEY, code, {"name": "step"})
    assert job.ask(1)
    entry = job.stores[1].get("program", KEY)
    assert entry is not None
    assert entry.payload == code
    assert not job.ranks[0]._common.check([f"program/{KEY}/0"]), "all have had it, so that it is not kept"


def test_a_program_in_another_folder_is_not_compiled_again(job: Job):
    job.stores[0].put("program", KEY, b"code", {"name": "step"})
    assert job.ask(1)
    entry = job.stores[1].get("program", KEY)
    assert entry is not None
    assert entry.payload == b"code"
    assert not job.ask(1, "cd" * 16), "nobody has that one"
    assert job.asked == [(f"program/{KEY}", None), (f"program/{'cd' * 16}", None)]


def test_a_rank_waits_for_the_compiling_rank(job: Job):
    """It waits as long as that rank answers that it is compiling."""
    mine = job.turn(0)
    with peers.sought("program", KEY) as entry:
        assert not entry
        job.turn(1)

        def make() -> None:
            while len(job.asked) < 3:
                time.sleep(0.01)
            mine.put("program", KEY, b"code", {"name": "step"})
            job.turn(0)
            job.ranks[0]._share("program", KEY)
            job.turn(1)

        later = threading.Thread(target=make)
        later.start()
        assert job.ask(1)
        later.join()
    assert job.asked[1:3] == [(f"program/{KEY}", 0)] * 2


def test_no_wait_for_a_program_that_failed(job: Job):
    """It was not stored, for example because the disk is full, or its compilation was interrupted."""
    store = job.turn(0)
    with suppress(KeyboardInterrupt), peers.sought("program", KEY):
        job.patch.setattr(store, "writable", lambda: False)
        raise KeyboardInterrupt
    assert not job.ask(1)
    assert job.asked == [(f"program/{KEY}", None)], "the first; the second was told"


def test_no_wait_for_a_program_stored_by_a_neighbour(job: Job):
    job.turn(0)
    with peers.sought("program", KEY):
        job.stores[1].put("program", KEY, b"code", {"name": "step"})
        assert job.ask(1)


@pytest.mark.parametrize("how", ["forgotten", "gone", "for ever"])
def test_no_wait_for_a_rank_that_does_not_compile(job: Job, how: str):
    """It was interrupted while it asked the others, or has stopped, or compiles for hours."""
    maker, waiting = job.ranks
    assert maker._claimed(f"program/{KEY}") == 0
    if how == "gone":
        job.patch.setattr(waiting, "_is_short", lambda: True)
    elif how == "for ever":
        maker._at_it.append(f"program/{KEY}")
        job.patch.setattr(waiting, "_patience", 0.5)
    start = time.monotonic()
    assert not job.ask(1)
    assert time.monotonic() - start < 10
    assert (len(job.asked) > 1) == (how == "for ever")
    assert not job.ask(0), "nor by itself"


class Gone:
    """A store whose server has ended."""

    def clone(self) -> Gone:
        return self

    def set_timeout(self, timeout: Any) -> None:
        """Do nothing: it never waits."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("connection closed")


class Silent(Gone):
    """A store whose server has stopped."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: time.sleep(2)


@pytest.mark.parametrize("kind", [Gone, Silent])
def test_a_store_that_is_gone_or_has_stopped(job: Job, kind: Any):
    job.patch.setattr(job.ranks[0], "_common", CommonStore(kind(), 0.1))
    start = time.monotonic()
    assert not job.ask(0)
    assert time.monotonic() - start < 1, "once"


@pytest.mark.parametrize("data", ["1", "no number"])
def test_a_store_that_has_something_else(job: Job, data: str):
    common = job.ranks[0]._common
    common.set(f"program/{KEY}/maker", "1")
    common.set(f"program/{KEY}/0", b"no entry")
    common.set(f"program/{KEY}", data)
    assert not job.ask(0)


def test_a_waiting_rank_holds_no_lock_that_the_other_needs(job: Job):
    """Of two ranks with one folder, one has a program compiled by the helper process, and so without the lock."""
    store = job.turn(0)
    locked: list[bool] = []

    @contextmanager
    def sought(kind: str, key: str) -> Iterator[bool]:
        with store.locked(kind, key) as lock:
            locked.append(lock)
        yield True

    job.patch.setattr(cached, "store", lambda: store)
    job.patch.setattr(cached.peers, "sought", sought)
    job.patch.setattr(store, "patience", 1.0)
    job.patch.setattr(cached, "_compile", lambda *arguments: "compiled")
    assert cached.obtain(None, KEY) == "compiled"  # pyright: ignore[reportArgumentType]
    assert locked == [True]
