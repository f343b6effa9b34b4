"""Gloo groups in processes that have lazytpu but do not use it, and the gloo group inside each device group."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from lazytpu.distributed import backend
from lazytpu.distributed.control import CollectiveError
from tests import zygote
from tests.distributed.ranks import ROOT, environment, free_port

PLAIN = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
for group in (None, dist.new_group([0, 1])):
    dist.barrier(group)
    dist.barrier(group, device_ids=[0])
    dist.barrier(group, async_op=True, device_ids=[0]).wait()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
expected = model(torch.ones(3, 4))
fully_shard(model)
torch.testing.assert_close(model(torch.ones(3, 4)), expected)
assert model.weight.device.type == "cpu"
dist.destroy_process_group()
from lazytpu import wiring
assert wiring.ENGINE is None, "the device was not used"
"""


def test_groups_of_gloo_are_as_without_the_device():
    port = free_port()
    ranks = [zygote.Process(["-c", PLAIN], env=environment(rank, 2, port), cwd=ROOT) for rank in range(2)]
    texts = [rank.communicate(120) for rank in ranks]
    assert [rank.wait(60) for rank in ranks] == [0, 0], texts


def test_connecting_gloo_has_a_timeout():
    """The file of a FileStore is missing, or the process of a TCPStore has stopped; gloo itself has no timeout
    there."""
    with pytest.raises(CollectiveError, match="has not given gloo the addresses of all ranks within"):
        backend._connected(Future(), 0.05)
