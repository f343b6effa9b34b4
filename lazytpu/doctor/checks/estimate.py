"""The cost report's estimate of a step, compared with its measured time."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

import lazytpu
from lazytpu.doctor.check import check

TOPOLOGIES = {"v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1", "tpu7x": "tpu7x:1x1x1"}
WIDTH, ROWS, RUNS = 512, 512, 10


@check(limit=180)
def step_time() -> str:
    """libtpu compiles a training step for the chip at hand: the report's estimate and the measured time."""
    from lazytpu.passes.generations import generation_of
    from lazytpu.runtime.xla import client

    kind = str(client.devices()[0].device_kind)
    generation = generation_of(kind) if client.platform() == "tpu" else None
    if importlib.util.find_spec("libtpu") is None and not os.path.isfile(os.environ.get("TPU_LIBRARY_PATH", "")):
        raise NotImplementedError("estimates need libtpu, which is not installed: pip install 'lazytpu[tpu]'")
    step = _step()
    measured = _measured(step)
    topology = TOPOLOGIES.get(generation or "v6e", "v6e:1x1")
    report = lazytpu.tpu_report(step, topology=topology)
    times = f"{1e6 * report.seconds:,.0f} us estimated for {topology}, {1e6 * measured:,.0f} us measured on {kind}"
    if generation is None:
        return f"{times}, a different device"
    return f"{times}, {measured / report.seconds:.2f} times as long"


def _step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(ROWS, WIDTH).to("tpu")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        lazytpu.mark_step()

    return step


def _measured(step: Callable[[], None]) -> float:
    """Seconds per run, over several runs without waits in between."""
    for _ in range(3):
        step()
    lazytpu.sync()
    start = perf_counter()
    for _ in range(RUNS):
        step()
    lazytpu.sync()
    return (perf_counter() - start) / RUNS
