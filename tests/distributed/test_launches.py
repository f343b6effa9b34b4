"""Jobs that are started again: the second launch loads the programs that the first compiled."""

from __future__ import annotations

from pathlib import Path

from tests import zygote
from tests.distributed.ranks import ROOT, environment, free_port

SCRIPT = """
import torch, torch.distributed as dist, lazytpu
x = torch.ones(4, device="tpu") * 2  # its program is loaded ahead, for a client that the group replaces
assert x.tolist() == [2.0] * 4
dist.init_process_group()
for _ in range(2):  # a third cut would have the whole compiled in the background, or not, if the process ends first
    y = x * dist.get_rank() + 1
    dist.all_reduce(y)
    assert (y + 1).tolist() == [5.0] * 4
print("compiled", lazytpu.metrics()["compiles"])
"""


def launch(script: Path) -> list[int]:
    """Return how many programs each of two ranks compiled."""
    port = free_port()
    processes = [zygote.Process([str(script)], env=environment(rank, 2, port), cwd=ROOT) for rank in range(2)]
    texts = [process.communicate(120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    assert not any("CacheWarning" in complaint for _, complaint in texts), texts
    return [int(printed.split("compiled ")[1]) for printed, _ in texts]


def test_a_second_launch_compiles_nothing(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert sum(launch(script)) > 0
    assert launch(script) == [0, 0]
    assert launch(script) == [0, 0], "what the second loaded is still there"
