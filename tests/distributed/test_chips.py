"""Ranks with a TPU chip each, simulated by a library that reports its arguments."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lazytpu.runtime.jobs import multiprocess
from lazytpu.runtime.xla import chips, client
from tests import zygote
from tests.distributed.ranks import ROOT, environment, free_port

TRAINS = """
import os
import jax, torch, torch.distributed as dist
from lazytpu.runtime.xla import client
from lazytpu.runtime.cache import programs
from tests.compiling import QUICK
from torch.nn.parallel import DistributedDataParallel
programs.OPTIONS.update(QUICK)
rank = int(os.environ["LOCAL_RANK"])
torch.tpu.set_device(rank)
device = torch.device("tpu", rank)
dist.init_process_group()
assert jax.local_devices()[0] == client.devices()[0], "libtpu gives a process no second client"
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device), device_ids=[rank], output_device=rank)
model(torch.full((2, 4), 1.0 + rank, device=device)).sum().backward()
print("gradient", model.module.weight.grad.tolist())
mesh = dist.init_device_mesh("tpu", (torch.tpu.device_count(),))
whole = dist.tensor.distribute_tensor(torch.arange(4.0), mesh, [dist.tensor.Shard(0)])
print("shard", whole.to_local().tolist(), "sum", whole.sum().full_tensor().item())
dist.destroy_process_group()
"""


def launch(script: Path, **more: str) -> list[tuple[int, str, str]]:
    """Return exit status, output and errors of two ranks."""
    script.write_text(TRAINS)
    port = free_port()
    ranks = [
        zygote.Process(
            ["-m", "tests.distributed.fake_tpu", str(script)],
            env=environment(rank, 2, port) | {"LAZYTPU_PLATFORM": "tpu", **more},
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(120) for rank in ranks]
    return [(rank.wait(), *text) for rank, text in zip(ranks, texts, strict=True)]


def test_each_rank_has_a_chip(tmp_path: Path):
    ranks = launch(tmp_path / "script.py", TPU_CHIPS_PER_PROCESS_BOUNDS="1,1,1", TPU_PROCESS_BOUNDS="2,1,1")
    assert [status for status, *_ in ranks] == [0, 0], ranks
    loads = [
        json.loads(match[1]) for _, printed, _ in ranks if (match := re.search(r"^loaded tpu (.*)", printed, re.M))
    ]
    assert [load["TPU_VISIBLE_CHIPS"] for load in loads] == [load["CLOUD_TPU_TASK_ID"] for load in loads] == ["0", "1"]
    assert {load["TPU_PROCESS_BOUNDS"] for load in loads} == {"2,1,1"}, "as the user has said"
    (addresses,) = {load["TPU_PROCESS_ADDRESSES"] for load in loads}
    assert [address.rpartition(":")[2] for address in addresses.split(",")] == [e["TPU_PROCESS_PORT"] for e in loads]
    for rank, (_, printed, _) in enumerate(ranks):
        assert "gradient [[3.0, 3.0, 3.0, 3.0]]" in printed  # the mean of 2 and 4
        assert f"shard {[[0.0, 1.0], [2.0, 3.0]][rank]} sum 6.0" in printed


def test_a_group_after_the_first_tensor_raises_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "seeks_tpu", lambda: True)
    assert client.client() and client.is_there()
    assert not multiprocess.takes_chip(1), "a process that is the only one keeps what it has"
    with pytest.raises(multiprocess.CannotJoin, match="before the first tensor on the device"):
        multiprocess.takes_chip(2)


class Client:
    """A libtpu client whose process is number 1 of two."""

    def process_index(self) -> int:
        return 1

    def devices(self) -> list[Any]:
        return [SimpleNamespace(process_index=process) for process in (0, 1)]


def test_ranks_in_another_order_than_the_machines(monkeypatch: pytest.MonkeyPatch):
    used: list[Any] = []
    monkeypatch.setattr(chips, "together", lambda *given: None)
    monkeypatch.setattr(multiprocess, "_connection", lambda place: None)
    monkeypatch.setattr(client, "make_tpu_client", lambda connection: Client())
    monkeypatch.setattr(client, "use", used.append)
    place = multiprocess.Place("127.0.0.1:1", 1, 2, "127.0.0.1", 1.0)
    multiprocess.take_chip(place, ["a:1", "b:1"])
    assert used.pop()
    for place_of in (replace(place, rank=0), replace(place, size=3)):
        with pytest.raises(multiprocess.CannotJoin, match=r"is process 1 to libtpu, .* of processes \[0, 1\]"):
            multiprocess.take_chip(place_of, ["a:1", "b:1"])
    assert not used


def test_other_platforms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "platform", lambda: "gpu")
    place = multiprocess.Place("127.0.0.1:1", 0, 1, "127.0.0.1", 1.0)
    before = client.client()
    multiprocess.join(place, lambda: pytest.fail("the programs of a process that is the only one are good"))
    assert client.client() is before
    with pytest.raises(NotImplementedError, match="process groups on a gpu: they run on TPUs and CPUs"):
        multiprocess.join(replace(place, size=2), lambda: None)
