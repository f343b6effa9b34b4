"""Derived states and buckets under concurrent threads, interrupts and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.engine.sizes import chains, growth, templates
from lazytpu.engine.sizes.templates import Template
from lazytpu.frontend.recording.growing import INFERENCE

pytestmark = pytest.mark.usefixtures("fresh_traces")

LENGTHS = (9, 11, 16, 10, 24, 18, 23, 12, 9, 14)


@pytest.fixture(autouse=True)
def two_buckets() -> Iterator[None]:
    lazytpu.sync()
    with lazytpu.options(buckets=(16, 24)):
        yield
        lazytpu.sync()


def training(width: int) -> Iterator[None]:
    """Train a model on batches of `LENGTHS`, then compare its parameters with a model on the CPU."""
    torch.manual_seed(width)
    host, device = (nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4)) for _ in range(2))
    device.load_state_dict(host.state_dict())
    models = [host, device.to("tpu")]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for length in LENGTHS:
        x = torch.rand(length, 4, generator=torch.Generator().manual_seed(length))
        for model, optimizer, data in zip(models, optimizers, (x, x.to("tpu")), strict=True):
            (model(data) - data.mean(0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        lazytpu.mark_step()
        yield
    for expected, actual in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach())


def test_threads_share_buckets_and_derived_states() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in training(6):  # all threads record the same structures
                pass
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(3)]
    before = len(lazytpu.explain())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    programs = len(lazytpu.explain()) - before
    assert programs <= 3 * 3, "at most three for each thread, all missed at once"


PLACES: dict[str, tuple[Any, str]] = {
    "expressions are fitted": (templates, "fit_derived"),
    "a chain is created": (growth, "Chain"),
    "a bucket is created": (Template, "_sized"),
    "records are put together": (templates, "trace_together"),
    "torch is compared": (type(INFERENCE), "agrees"),
    "states are created": (chains, "State"),
}


def computed(x: torch.Tensor, extra: int) -> torch.Tensor:
    """Compute with all rows; `extra` is the number of additional ops."""
    for _ in range(extra):
        x = x + x.mean(0)
    return (x * 2 - x.mean(0)).tanh().cumsum(0)


@pytest.mark.parametrize("place", PLACES)
def test_size_is_derived_again_after_an_interrupt(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = PLACES[place]
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def interrupted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return original(*args, **named)

    monkeypatch.setattr(owner, name, interrupted)
    extra = [*PLACES].index(place)  # another trace than in the tests before
    x = torch.rand(32, 3)
    interrupts = 0
    for length in LENGTHS:
        for _ in range(2):
            try:
                y = x[:length].clone().to("tpu")
                z = computed(y, extra)
                lazytpu.mark_step()
                torch.testing.assert_close(z.cpu(), computed(x[:length], extra))
                break
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 1 and calls > 1


SCRIPT = """
import sys, torch, lazytpu
for length in (9, 11, 16, 10, 24, 18):
    x = torch.arange(4.0 * length).view(length, 4)
    y = (x.to("tpu") - 3).relu().mean(0)
    lazytpu.mark_step()
    assert torch.allclose(y.cpu(), (x - 3).relu().mean(0)), length
print("compiled", lazytpu.metrics()["compiles"])
"""


def test_processes_share_buckets_on_disk(tmp_path: Path) -> None:
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(tmp_path), "LAZYTPU_BUCKETS": "16,24"}

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, text=True, stdout=subprocess.PIPE)

    processes = [begin(), begin()]
    compiled = [int(process.communicate(timeout=300)[0].split()[-1]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert 3 <= sum(compiled) <= 6
    assert begin().communicate(timeout=300)[0].strip() == "compiled 0"
