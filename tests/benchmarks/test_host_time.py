"""The split of the host's time measures real kernels, and leaves them as they were."""

from __future__ import annotations

import ast

from tests import zygote
from tests.benchmarks.test_benchmarks import FOLDER

SCRIPT = """
import sys
sys.path.insert(0, "benchmarks")
import torch
import lazytpu
from host_time import PARTS, split
from lazytpu.frontend.recording.kernels import kernel

weights = [torch.randn(16, 16, device="tpu", requires_grad=True) for _ in range(6)]
x = torch.randn(8, 16, device="tpu")
losses = []

def step():
    y = x
    for weight in weights:
        y = (y @ weight.t()).relu()
    loss = y.sum()
    loss.backward()
    torch._foreach_mul_(weights_of(weights), 0.5)
    losses.append(loss.detach())
    lazytpu.mark_step()

def weights_of(weights):
    return [weight.grad for weight in weights]

step()
code = kernel(torch.ops.aten.mm.default).call.__code__
parts = split(step, 3)
assert kernel(torch.ops.aten.mm.default).call.__code__ is code
step()
assert len({loss.item() for loss in losses}) == 1
print(parts)
"""


def test_split_measures_each_part_and_restores_the_kernels() -> None:
    done = zygote.run(["-c", SCRIPT], cwd=FOLDER.parent, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    measured = ast.literal_eval(done.stdout.splitlines()[-1])
    assert all(measured[name] > 0 for name in ("dispatcher", "key", "trie", "results", "views", "launch"))
    assert measured["least"] <= measured["median"]
    assert measured["script"] <= measured["least"]
