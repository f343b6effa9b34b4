"""The end of a process in a group: threads that use XLA have stopped before the interpreter is finalized.

A thread that returns from XLA after that takes the interpreter's lock, and terminates the process: "terminate called
...".
"""

from __future__ import annotations

import re
import subprocess
import sys

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
    done = zygote.run(["-c", f"{SCRIPT}sys.exit({status})"], timeout=120, finalizes=True)
    assert (done.returncode, done.stderr) == (status, "")
    before, after = done.stdout.splitlines()
    for name in ("lazytpu watchdog", "lazytpu peers"):
        assert name in before
        assert name not in after


ALONE = """
import datetime
import torch, torch.distributed as dist

try:
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=2, timeout=datetime.timedelta(seconds=1))
except RuntimeError as error:
    print(error)
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(4, device="tpu")
dist.all_reduce(x)
assert x.tolist() == [1] * 4
"""


def _two(port: int, *program: str) -> list[zygote.Process]:
    """Start two ranks that run a program to its very end."""
    return [
        zygote.Process(["-c", *program], env=environment(rank, 2, port), cwd=ROOT, finalizes=True) for rank in range(2)
    ]


def test_a_rank_missing_at_the_start_is_named():
    """XLA's client would abort this process. The process can start again."""
    done = zygote.run(["-c", ALONE], timeout=120, finalizes=True)
    assert done.returncode == 0
    assert "rank 0 waited 1 s" in done.stdout
    assert "for rank 1 (its last: none)" in done.stdout


UNREAD = """
import os, signal, sys
import torch, torch.distributed as dist
from lazytpu.distributed.turns import Collective

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
    """No code reads its result."""
    port = free_port()
    ranks = _two(port, UNREAD, str(n))
    said = ranks[0].communicate(120)[1]
    assert [rank.wait(60) for rank in ranks] == [1, -9]
    assert "rank 1 was killed or crashed, after all_reduce(add)" in said
    assert "terminate called" not in said


ENDS = """
import os, sys
import torch, torch.distributed as dist

dist.init_process_group()
x = torch.ones(4, device="tpu")
dist.all_reduce(x)
assert x.tolist() == [2] * 4
if dist.get_rank() == 1:
    {end}
dist.all_reduce(x)
x.tolist()
"""
HOW = {
    "sys.exit(3)": (3, "has ended"),
    "raise ValueError('wrong')": (1, r"raised ValueError: wrong at \S+:\d+"),
    "os._exit(4)": (4, "was killed or crashed"),
}


@pytest.mark.parametrize("end", HOW)
def test_a_rank_that_ends_early_is_named(end: str):
    """The other rank has a nonzero exit status, too."""
    port = free_port()
    code = ENDS.replace("{end}", end)
    ranks = _two(port, code)
    said = ranks[0].communicate(120)[1]
    status, how = HOW[end]
    assert [rank.wait(60) for rank in ranks] == [1, status]
    assert re.search(rf"rank 1 {how}, after all_reduce\(add\) float32\[4\]", said)
    assert "CollectiveError" in said


INTERRUPTED = """
import os, signal, threading, time
import torch, torch.distributed as dist

dist.init_process_group()
if dist.get_rank() == 1:
    time.sleep(200)
dist.all_reduce(torch.ones(4, device="tpu"))
timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
timer.daemon = True
timer.start()
"""


def test_an_interrupt_of_the_wait_at_the_end_is_in_the_exit_status():
    port = free_port()
    ranks = _two(port, INTERRUPTED)
    said = ranks[0].communicate(60)[1]
    ranks[1].kill()
    assert [rank.wait(60) for rank in ranks] == [1, -9]
    assert "KeyboardInterrupt" in said


LONGER = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group()
x = torch.ones(4, device="tpu")
dist.all_reduce(x)
assert x.tolist() == [2] * 4
if dist.get_rank() == 0:
    while os.path.exists(f"/proc/{os.environ['OTHER']}/fd"):
        time.sleep(0.05)
    time.sleep(0.2)  # for the helper to tell
    assert (x * 2).tolist() == [4] * 4
"""


def test_a_rank_that_continues_alone_reports_nothing():
    """For example, it saves the model when the others have ended."""
    port = free_port()
    second = zygote.Process(["-c", LONGER], env=environment(1, 2, port), cwd=ROOT)
    first = zygote.Process(["-c", LONGER], env=environment(0, 2, port) | {"OTHER": str(second.pid)}, cwd=ROOT)
    assert second.wait(120) == 0
    said = first.communicate(120)[1]
    assert first.wait(60) == 0
    assert "is broken" not in said


STORE = """
import os, sys, time
import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(200)
"""
WITHOUT = """
import os, signal, sys, time
import torch, torch.distributed as dist

rank, port, server = map(int, sys.argv[1:])
dist.init_process_group(store=dist.TCPStore("127.0.0.1", port, 2, False), rank=rank, world_size=2)
x = torch.ones(4, device="tpu")
dist.all_reduce(x)
assert x.tolist() == [2] * 4
dist.barrier()
if rank == 0:
    os.kill(server, signal.SIGKILL)
time.sleep(0.5)
for _ in range(3):
    dist.all_reduce(x)
assert x.tolist() == [16] * 4
dist.new_group([0, 1])
"""


def test_new_group_fails_after_the_end_of_the_store():
    """Collectives continue, since the control plane is the helper's. Creating a group fails at once, with torch's
    error."""
    server = subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    ranks = [zygote.Process(["-c", WITHOUT, str(rank), port, str(server.pid)], cwd=ROOT) for rank in range(2)]
    for rank in ranks:
        said = rank.communicate(120)[1]
        assert rank.returncode == 1
        assert "new_group" in said
        assert "DistNetworkError" in said
    server.communicate(timeout=60)
