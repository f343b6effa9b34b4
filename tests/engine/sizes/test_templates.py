"""Traces that differ in sizes share a program for each bucket, and compute what they do on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazytpu
from lazytpu.runtime.buffers import padded


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All padding holds NaN, or the largest integer."""
    monkeypatch.setattr(padded, "POISON", True)
    lazytpu.sync()
    with lazytpu.options(buckets=(16, 24), background_compile=0.0):
        yield
        lazytpu.sync()


def programs(run: Callable[[], object]) -> int:
    """How many programs a function makes."""
    before = len(lazytpu.explain())
    run()
    lazytpu.sync()
    return len(lazytpu.explain()) - before


def mlp(width: int) -> tuple[nn.Module, nn.Module]:
    """A model on the CPU and on the device; no other test has one of this width, which shares its programs."""
    host, device = (nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 4)) for _ in range(2))
    device.load_state_dict(host.state_dict())
    return host, device.to("tpu")


@pytest.mark.parametrize("mode", ["lazy", "fused"])
def test_one_program_for_a_bucket(mode: str) -> None:
    host, device = mlp(5 if mode == "lazy" else 6)

    def steps() -> None:
        for length in (9, 11, 16, 10, 24, 18, 23, 9):
            x = torch.randn(length, 4)
            y = device(x.to("tpu"))
            loss = (y - y.mean(0)).square().mean()
            lazytpu.mark_step()
            expected = host(x)
            torch.testing.assert_close(y.cpu(), expected)
            torch.testing.assert_close(loss.cpu(), (expected - expected.mean(0)).square().mean())

    with lazytpu.mode(mode):
        made = programs(steps)
    assert made == 3  # of 9 rows alone, of up to 16, of up to 24
    assert "one program for sizes n 17..24, now 24, 0 % padding" in str(lazytpu.explain()[-1])


@pytest.mark.usefixtures("fresh_traces")
def test_one_smaller_size_is_a_last_batch_and_several_vary() -> None:
    def made(*lengths: int) -> list[tuple[str, str]]:
        before = len(lazytpu.explain())
        for length in lengths:
            given = (torch.ones(length, 4).to("tpu") * 3).cumsum(0)
            lazytpu.mark_step()
            assert given[-1, 0].item() == 3 * length
        return [(each.hint, each.fix) for each in list(lazytpu.explain())[before:] if each.records == 2]

    first, last = made(23, 13)
    assert first[0] == "" and last == ("last-batch", "none needed: it serves all sizes of its bucket")
    assert [hint for hint, _ in made(20, 11)] == ["varying-size"]


def test_training_with_lengths_that_vary() -> None:
    host, device = mlp(7)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (host, device)]

    def steps() -> None:
        for batch, length in ((2, 9), (2, 12), (2, 16), (2, 10)):
            x = torch.randn(batch, length, 4)
            for model, data, optimizer in zip((host, device), (x, x.to("tpu")), optimizers, strict=True):
                scores = model(data[:, :-1]).reshape(-1, 4)
                functional.cross_entropy(scores, data[:, 1:].argmax(-1).reshape(-1)).backward()
                optimizer.step()
                optimizer.zero_grad()
            lazytpu.mark_step()

    assert programs(steps) == 2
    for one, other in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach())


def test_a_cache_grows_in_its_bucket() -> None:
    host, device = torch.zeros(2, 8), torch.zeros(2, 8).to("tpu")

    def steps() -> None:
        nonlocal host, device
        for i in range(12):
            new = torch.full((2, 1), float(i))
            host, device = torch.cat([host, new], 1), torch.cat([device, new.to("tpu")], 1)
            total = device.sum()
            lazytpu.mark_step()
            assert total.item() == host.sum().item()

    assert programs(steps) == 3  # of 8 columns alone, of up to 15, of more
    assert torch.equal(device.cpu(), host)


def test_sizes_0_and_1_are_programs_of_their_own() -> None:
    host, device = mlp(8)
    for length in (9, 11, 1, 0, 2, 10):
        x = torch.randn(length, 4)
        y = device(x.to("tpu")).sum(0)
        lazytpu.mark_step()
        torch.testing.assert_close(y.cpu(), host(x).sum(0))


def test_what_is_refused_has_a_program_of_its_size() -> None:
    def steps() -> None:
        for length in (9, 11, 14):
            x = torch.randn(length, length) + 9 * torch.eye(length)
            y = torch.linalg.pinv(x.to("tpu"))  # of a singular value decomposition
            lazytpu.mark_step()
            torch.testing.assert_close(y.cpu(), torch.linalg.pinv(x), rtol=1e-4, atol=1e-5)

    steps()
    refused = [made for made in lazytpu.explain() if made.source == "refused"]
    assert refused
    assert "no program for many sizes" in str(refused[-1])
    assert "test_templates.py" in str(refused[-1])


def test_off_makes_a_program_for_each_size() -> None:
    _, device = mlp(9)

    def steps() -> None:
        for length in (9, 11, 14):
            y = device(torch.randn(length, 4).to("tpu"))
            lazytpu.mark_step()
            assert y.shape == (length, 4)

    with lazytpu.options(buckets="off"):
        assert programs(steps) == 3
    assert programs(steps) == 0  # what is there serves on


SCRIPT = """
import torch, lazytpu
for length in (9, 11, 16, 10):
    x = torch.arange(4.0 * length).view(length, 4)
    y = (x.to("tpu") - 3).relu().mean(0)
    lazytpu.mark_step()
    assert torch.allclose(y.cpu(), (x - 3).relu().mean(0)), length
print("compiled", lazytpu.metrics()["compiles"])
"""


@pytest.mark.long
def test_a_second_process_finds_them_on_disk(tmp_path: Path) -> None:
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(tmp_path), "LAZYTPU_BUCKETS": "16"}
    told = [
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [t.stdout.strip() for t in told] == ["compiled 2", "compiled 0"]


@pytest.mark.usefixtures("fresh_traces")
def test_a_quotient_that_the_first_sizes_do_not_tell_from_others() -> None:
    """Of rows 9 to 16 the program is looked at where there are 16, 15, 12 and 9: n/3 and (n+1)/3 are equal there, and
    not at 11."""

    def gradient(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x.requires_grad_()
        rows = x.expand(n, len(x))
        (rows.square().sum() + rows[1::3].square().sum()).backward()
        assert x.grad is not None
        return x.grad

    with lazytpu.options(buckets=(4, 8, 16)):
        for n, m in ((5, 3), (7, 4), (6, 3), (8, 4), (9, 5), (13, 7), (16, 6), (11, 7), (14, 5), (10, 8)):
            x = torch.arange(1.0, m + 1)
            torch.testing.assert_close(gradient(x.to("tpu"), n).cpu(), gradient(x, n))
