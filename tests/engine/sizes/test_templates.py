"""Traces that differ only in sizes share a program for each bucket, with the values of the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazytpu
from lazytpu.engine.sizes import padded as making
from lazytpu.runtime.buffers import padded


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill all padding with NaN or the largest integer."""
    monkeypatch.setattr(padded, "POISON", True)
    lazytpu.sync()
    with lazytpu.options(buckets=(16, 24), background_compile=0.0):
        yield
        lazytpu.sync()


def programs(run: Callable[[], object]) -> int:
    """Count the programs that a function adds."""
    before = len(lazytpu.explain())
    run()
    lazytpu.sync()
    return len(lazytpu.explain()) - before


def mlp(width: int) -> tuple[nn.Module, nn.Module]:
    """A model on the CPU and on the device. Tests use different widths, so that they share no programs."""
    host, device = (nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 4)) for _ in range(2))
    device.load_state_dict(host.state_dict())
    return host, device.to("tpu")


def test_buckets_of_a_step_share_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    host, device = mlp(7)
    imports, derive = list[object](), making._derived
    monkeypatch.setattr(making, "_derived", lambda *args: imports.append(args) or derive(*args))

    def steps() -> None:
        for length in (9, 11, 23):
            x = torch.randn(length, 4)
            torch.testing.assert_close(device(x.to("tpu")).softmax(0).cpu(), host(x).softmax(0))

    assert programs(steps) == 3
    assert len(imports) == 1


@pytest.mark.parametrize("mode", ["lazy", "fused"])
def test_sizes_of_a_bucket_share_a_program(mode: str) -> None:
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
        compiled = programs(steps)
    assert compiled == 3  # for 9 rows, up to 16 and up to 24
    assert "one program for sizes n 17..24, now 24, 0 % padding" in str(lazytpu.explain()[-1])


@pytest.mark.usefixtures("fresh_traces")
def test_single_smaller_size_is_a_last_batch() -> None:
    def hints(*lengths: int) -> list[tuple[str, str]]:
        before = len(lazytpu.explain())
        for length in lengths:
            sums = (torch.ones(length, 4).to("tpu") * 3).cumsum(0)
            lazytpu.mark_step()
            assert sums[-1, 0].item() == 3 * length
        return [(program.hint, program.fix) for program in list(lazytpu.explain())[before:] if program.records == 2]

    first, last = hints(23, 13)
    assert first[0] == "" and last == ("last-batch", "none needed: it serves all sizes of its bucket")
    assert [hint for hint, _ in hints(20, 11)] == ["varying-size"]


def test_training_with_varying_lengths() -> None:
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
    for expected, actual in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach())


def test_growing_cache_shares_programs_of_buckets() -> None:
    host, device = torch.zeros(2, 8), torch.zeros(2, 8).to("tpu")

    def steps() -> None:
        nonlocal host, device
        for i in range(12):
            new = torch.full((2, 1), float(i))
            host, device = torch.cat([host, new], 1), torch.cat([device, new.to("tpu")], 1)
            total = device.sum()
            lazytpu.mark_step()
            assert total.item() == host.sum().item()

    assert programs(steps) == 3  # for 8 columns, up to 15, and more
    assert torch.equal(device.cpu(), host)


def test_sizes_0_and_1_equal_the_cpu() -> None:
    host, device = mlp(8)
    for length in (9, 11, 1, 0, 2, 10):
        x = torch.randn(length, 4)
        y = device(x.to("tpu")).sum(0)
        lazytpu.mark_step()
        torch.testing.assert_close(y.cpu(), host(x).sum(0))


def test_unsupported_op_has_a_program_for_each_size() -> None:
    def steps() -> None:
        for length in (9, 11, 14):
            x = torch.randn(length, length) + 9 * torch.eye(length)
            y = torch.linalg.pinv(x.to("tpu"))  # by a singular value decomposition
            lazytpu.mark_step()
            torch.testing.assert_close(y.cpu(), torch.linalg.pinv(x), rtol=1e-4, atol=1e-5)

    steps()
    refused = [program for program in lazytpu.explain() if program.source == "refused"]
    assert refused
    assert "no program for many sizes" in str(refused[-1])
    assert "test_templates.py" in str(refused[-1])
    assert not any("it serves all sizes" in str(program) for program in refused)
    (place,) = re.findall(r"(`\w+` at \S*test_templates\.py:\d+) needs one size", refused[-1].fix)
    assert refused[-1].fix.startswith("pad to one size, or to a few (each is compiled once); ")
    # The programs that each size gets instead have the same cause.
    later = [program for program in lazytpu.explain() if program.number >= refused[-1].number]
    exact = [program for program in later if program.source != "refused"]
    assert exact and all(place in f"{program.text} {program.fix}" for program in exact)
    assert all(program.text.endswith(f"; fix: {program.fix}") for program in refused)


def test_off_compiles_a_program_for_each_size() -> None:
    _, device = mlp(9)

    def steps() -> None:
        for length in (9, 11, 14):
            y = device(torch.randn(length, 4).to("tpu"))
            lazytpu.mark_step()
            assert y.shape == (length, 4)

    with lazytpu.options(buckets="off"):
        assert programs(steps) == 3
    assert programs(steps) == 0  # existing programs are used


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
def test_second_process_loads_programs_of_buckets(tmp_path: Path) -> None:
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(tmp_path), "LAZYTPU_BUCKETS": "16"}
    processes = [
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [process.stdout.strip() for process in processes] == ["compiled 2", "compiled 0"]


@pytest.mark.usefixtures("fresh_traces")
def test_ambiguous_quotient_has_exact_values() -> None:
    """For 9 to 16 rows the program is checked at 16, 15, 12 and 9, where n/3 and (n+1)/3 are equal; they differ at
    11."""

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
