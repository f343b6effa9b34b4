"""Ranks with caches of their own: each program is compiled once in the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

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


def test_what_one_rank_compiles_the_other_loads(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    port = free_port()
    ranks = [
        zygote.Process(
            [str(script)],
            env=environment(rank, 2, port) | {"LAZYTPU_CACHE_DIR": str(tmp_path / str(rank)), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(120) for rank in ranks]
    assert [rank.wait() for rank in ranks] == [0, 0], texts
    compiled = sum(int(printed.split("compiled ")[1]) for printed, _ in texts)
    stored = [{path.name for path in (tmp_path / str(rank)).rglob("*.program")} for rank in range(2)]
    assert stored[0] == stored[1]
    assert compiled == len(stored[0]) >= 3, texts


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
