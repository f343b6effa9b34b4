"""Ranks with caches of their own: each program is compiled once in the job."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from lazytpu.distributed import programs
from lazytpu.distributed.programs import Shared
from lazytpu.runtime.cache import peers
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
    """Run the script on two ranks with folders of their own: what each compiled, and the programs in its folder."""
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


def test_what_one_rank_compiles_or_has_the_other_loads(tmp_path: Path):
    compiled, stored = launch(tmp_path)
    assert stored[0] == stored[1]
    assert sum(compiled) == len(stored[0]) >= 3
    shutil.rmtree(tmp_path / "0")  # as of a machine that is new to the job
    compiled, again = launch(tmp_path)
    assert (sum(compiled), again) == (0, stored)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two ranks in this process, with a folder each; the one that `turn` names is at work."""
    common = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    ranks = [(Shared(common, 2), Store(tmp_path / str(rank))) for rank in range(2)]

    def turn(rank: int) -> Store:
        monkeypatch.setattr(peers, "PEERS", [ranks[rank][0]])
        monkeypatch.setattr(peers, "store", lambda: ranks[rank][1])
        return ranks[rank][1]

    yield turn
    del common  # the server, until now


def test_bytes_go_from_one_folder_to_the_other(job: Any):
    mine = job(0)
    assert not peers.receive("program", KEY), "nobody has it: it is for this rank to make"
    code = bytes(range(256)) * (9 << 12)  # 9 MiB: more than one value of the store may have
    mine.put("program", KEY, code, {"name": "step"})
    peers.share("program", KEY)
    other = job(1)
    assert peers.receive("program", KEY)
    assert other.get("program", KEY).payload == code
    assert peers.PEERS[0].receive("program", KEY, lambda: False) is None, "all have had it, so that it is not kept"


def test_what_another_folder_has_is_not_made_again(job: Any, monkeypatch: pytest.MonkeyPatch):
    job(0).put("program", KEY, b"code", {"name": "step"})
    owner: Any = peers.PEERS[0]
    sought: list[str] = []

    def seek(name: str, seconds: float) -> bool:
        sought.append(name)
        monkeypatch.setattr(programs, "store", lambda: stores[0])
        return owner.offer(name)

    stores = [job(0), job(1)]
    monkeypatch.setattr(peers.PEERS[0], "_seek", seek)
    assert peers.receive("program", KEY)
    assert stores[1].get("program", KEY).payload == b"code"
    assert not peers.receive("program", "cd" * 16), "nobody has that one"
    assert sought == [f"program/{KEY}", f"program/{'cd' * 16}"]
    assert owner.close(time.monotonic() + 10)


def test_a_rank_waits_for_the_one_that_makes_it(job: Any):
    mine = job(0)
    assert not peers.receive("program", KEY)

    def make() -> None:
        mine.put("program", KEY, b"code", {"name": "step"})
        maker.share("program", KEY, mine.get("program", KEY))

    maker = peers.PEERS[0]
    later = threading.Timer(0.1, make)
    job(1)
    later.start()
    assert peers.receive("program", KEY)
    later.join()


def test_what_could_not_be_made_is_not_waited_for(job: Any):
    job(0)
    assert not peers.receive("program", KEY)
    peers.share("program", KEY)
    job(1)
    assert not peers.receive("program", KEY)


def test_what_a_neighbour_has_stored_is_not_waited_for(job: Any):
    job(0)
    assert not peers.receive("program", KEY)
    job(1).put("program", KEY, b"code", {"name": "step"})
    assert peers.receive("program", KEY)


def test_a_maker_that_is_gone_is_not_waited_for_for_ever(job: Any, monkeypatch: pytest.MonkeyPatch):
    job(0)
    assert not peers.receive("program", KEY)
    job(1)
    monkeypatch.setattr(peers.PEERS[0], "_is_short", lambda: True)
    assert not peers.receive("program", KEY)
    monkeypatch.undo()
    job(1)
    monkeypatch.setattr(peers.PEERS[0], "_patience", 0.0)
    assert not peers.receive("program", KEY)


class Gone:
    """A store whose server has ended."""

    def clone(self) -> Gone:
        return self

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("connection closed")


@pytest.mark.parametrize("data", ["1", "no number", None])
def test_a_store_that_is_gone_or_not_ours(job: Any, monkeypatch: pytest.MonkeyPatch, data: str | None):
    job(0)
    common = peers.PEERS[0]._common
    if data is None:
        monkeypatch.setattr(peers.PEERS[0], "_common", Gone())
    else:
        common.add(f"program/{KEY}/claimed", 1)
        common.set(f"program/{KEY}/0", b"no entry")
        common.set(f"program/{KEY}", data)
    assert not peers.receive("program", KEY)
    peers.share("program", KEY)
