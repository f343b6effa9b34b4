"""The end of a process in a group: what uses XLA on threads has stopped before the interpreter is finalized.

A thread that comes back from XLA after that wants the interpreter's lock, and ends the process: "terminate called ...".
"""

from __future__ import annotations

import pytest

from tests import zygote
from tests.distributed.ranks import ROOT, environment, free_port

SCRIPT = """
import atexit, sys, threading
atexit.register(lambda: print([each.name for each in threading.enumerate()]))  # the first of these runs last
import torch, torch.distributed as dist

dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(1 << 16, device="tpu")
for _ in range(3):
    dist.all_reduce(x)
    y = x + 1
    assert y[0].item() == 2
dist.all_reduce(y)
print([each.name for each in threading.enumerate()])
"""


@pytest.mark.parametrize("status", [0, 3])
def test_threads_that_use_xla_have_stopped(status: int):
    done = zygote.run(["-c", f"{SCRIPT}sys.exit({status})"], timeout=120)
    assert (done.returncode, done.stderr) == (status, "")
    before, after = done.stdout.splitlines()
    for name in ("lazytpu watchdog", "lazytpu peers"):
        assert name in before
        assert name not in after


UNREAD = """
import os, signal, sys
import torch, torch.distributed as dist
from lazytpu.distributed.world import Collective

n = int(sys.argv[1])
dist.init_process_group()
x = torch.ones(n, device="tpu")
dist.all_reduce(x)
assert x[0].item() == 2
if dist.get_rank() == 1:
    agree = Collective.wait

    def agree_and_end(self):
        agree(self)
        os.kill(os.getpid(), signal.SIGKILL)

    Collective.wait = agree_and_end
dist.all_reduce(x)
"""


@pytest.mark.parametrize("n", [4, 1 << 16])
def test_a_collective_that_fails_at_the_end_is_in_the_exit_status(n: int):
    """Though nobody reads its result."""
    port = free_port()
    ranks = [zygote.Process(["-c", UNREAD, str(n)], env=environment(rank, 2, port), cwd=ROOT) for rank in range(2)]
    said = ranks[0].communicate(120)[1]
    assert [rank.wait(60) for rank in ranks] == [1, -9]
    assert "rank 1 was killed or crashed, after all_reduce(add)" in said
    assert "terminate called" not in said
