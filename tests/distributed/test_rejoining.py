"""Recovery after a fault, in the same processes: a group of the survivors, and a restart of all."""

from __future__ import annotations

import signal

import pytest

from tests import zygote
from tests.distributed.ranks import ROOT, environment, free_port

COMMON = """
import datetime, os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from lazytpu.distributed import world
from lazytpu.runtime.cache import programs
from tests.compiling import QUICK
programs.OPTIONS.update(QUICK)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = datetime.timedelta(seconds=30)
stores = []


def start(port, rank, size):
    stores.append(dist.TCPStore("127.0.0.1", int(port), size, rank == 0))
    dist.init_process_group(store=stores[-1], rank=rank, world_size=size, timeout=TIMEOUT)


def total(group=None):
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x, group=group)
    return x.tolist()


def train(group=None):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to("tpu"), process_group=group)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.full((2, 4), rank + 1.0, device="tpu")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.module.bias.tolist()


def fails():
    try:
        total()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""

SURVIVORS = """
start(sys.argv[1], rank, size)
assert total() == [3.0] * 4
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
assert "rank 2 was killed" in fails()
group = dist.new_group([0, 1], use_local_synchronization=True)
assert total(group) == [2.0] * 4
trained = train(group)
if sys.argv[2] == "smaller":
    dist.destroy_process_group()
    start(sys.argv[3], rank, 2)
    assert (dist.get_world_size(), total()) == (2, [2.0] * 4)
print(trained)
"""

AGAIN = """
start(sys.argv[1], rank, size)
kept = torch.arange(4.0, device="tpu") * 2
assert total() == [2.0] * 4
first = world.WORLD
dist.destroy_process_group()
start(sys.argv[2], rank, size)
assert total() == [2.0] * 4 and world.WORLD is first, "nothing was wrong"
for links in first.watch._links.values():
    links.cut()
lost = torch.ones(4, device="tpu")
dist.all_reduce(lost)
assert "Gloo" in fails()
dist.destroy_process_group()
start(sys.argv[3], rank, size)
assert world.WORLD is not first
assert (total(), kept.tolist()) == ([2.0] * 4, [0.0, 2.0, 4.0, 6.0])
print(train())
"""

REPLACED = """
if rank < 2:
    start(sys.argv[1], rank, 2)
    assert total() == [2.0] * 4
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    assert "rank 0 was killed" in fails()
    dist.destroy_process_group()
start(sys.argv[2], rank % 2, 2)  # rank 2 comes in place of rank 0
assert total() == [2.0] * 4
"""


def run(script: str, size: int, *arguments: str, killed: int | None = None) -> list[str]:
    """Return the last output of each of `size` ranks of a script. All must end with status 0, except the killed one."""
    processes = [
        zygote.Process(
            ["-c", COMMON + script, *arguments],
            env=environment(rank, size, free_port()) | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for rank in range(size)
    ]
    texts = [process.communicate(120) for process in processes]
    statuses = [process.wait() for process in processes]
    assert statuses == [-signal.SIGKILL if rank == killed else 0 for rank in range(size)], texts
    return [printed.splitlines()[-1] for printed, _ in texts[:2]]


@pytest.mark.parametrize("then", ["same", "smaller"])
def test_survivors_continue(then: str):
    first, second = run(SURVIVORS, 3, str(free_port()), then, str(free_port()), killed=2)
    assert first == second


def test_connections_that_were_cut_are_opened_again():
    first, second = run(AGAIN, 2, *(str(free_port()) for _ in range(3)))
    assert first == second


def test_a_new_process_replaces_a_killed_one():
    run(REPLACED, 3, str(free_port()), str(free_port()), killed=0)
