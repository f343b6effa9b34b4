"""A program for many sizes is compiled in the background, like any other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.runtime.buffers import padded
from tests.engine.conftest import Gate


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All padding holds NaN, or the largest integer."""
    monkeypatch.setattr(padded, "POISON", True)
    lazytpu.sync()
    with lazytpu.options(buckets=(16,)), lazytpu.mode("fused"):
        yield
        lazytpu.sync()


def model(width: int) -> tuple[nn.Module, nn.Module]:
    host, device = (nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4)) for _ in range(2))
    device.load_state_dict(host.state_dict())
    return host, device.to("tpu")


def step(host: nn.Module, device: nn.Module, length: int) -> None:
    x = torch.randn(length, 4)
    y = device(x.to("tpu"))
    loss = (y - y.mean(0)).square().mean()
    lazytpu.mark_step()
    expected = host(x)
    torch.testing.assert_close(y.detach().cpu(), expected.detach())
    torch.testing.assert_close(loss.detach().cpu(), (expected - expected.mean(0)).square().mean().detach())


def test_steps_run_op_by_op_until_the_program_is_compiled(gate: Gate) -> None:
    host, device = model(13)
    with lazytpu.options(background_compile=0.0):
        step(host, device, 9)
    before = lazytpu.metrics()
    for length in (10, 12, 11):
        step(host, device, length)
    assert lazytpu.metrics()["stepwise"] > before["stepwise"], "the first steps run op by op"
    explanations = [program for program in lazytpu.explain() if "one program for sizes" in str(program)]
    gate.open()
    before = lazytpu.metrics()
    for length in (13, 10, 14):
        step(host, device, length)
    after = lazytpu.metrics()
    assert explanations
    assert (after["stepwise"], after["compiles"]) == (before["stepwise"], before["compiles"])


def test_program_of_one_size_runs_when_xla_refuses_the_one_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.engine.compiling.compiler import Compiler
    from lazytpu.engine.compiling.prepared import Prepared
    from lazytpu.engine.launching.compiled import Compiled
    from lazytpu.runtime.errors import CompileError

    build = Compiler.build

    def refusing(self: Compiler, prepared: Prepared) -> Compiled:
        if prepared.binding.padding is not None:
            raise CompileError("a program", "it has no room")
        return build(self, prepared)

    host, device = model(14)
    step(host, device, 9)
    engine = lazytpu.frontend.activation.engine()
    monkeypatch.setattr(Compiler, "build", refusing)
    monkeypatch.setattr(engine.background, "build", lambda prepared: refusing(engine.compiler, prepared))
    for patience in (0.0, 60.0):
        with lazytpu.options(background_compile=patience):
            for length in (10, 12):
                step(host, device, length)


def bits(lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """Return reductions over tensors of these lengths."""
    rows = [torch.rand(length, 5, generator=torch.Generator().manual_seed(length)).to("tpu") for length in lengths]
    return [((tensor * 3).softmax(0) - tensor.mean(0)).sum(0).cpu() for tensor in rows]


@pytest.mark.usefixtures("fresh_traces")
@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_modes_without_traces_compute_at_exact_sizes(mode: str) -> None:
    lengths = (9, 10, 12, 15)
    with lazytpu.mode(mode):
        before = len(lazytpu.explain())
        results = bits(lengths)
        assert not any("one program for sizes" in str(program) for program in list(lazytpu.explain())[before:])
        with lazytpu.options(buckets="off"):
            assert all(map(torch.equal, results, bits(lengths)))


@pytest.mark.usefixtures("fresh_traces")
def test_op_by_op_computes_at_exact_sizes() -> None:
    lengths = (9, 10, 12, 15)
    engine = lazytpu.frontend.activation.engine()
    with lazytpu.options(background_compile=0.001), pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.background, "build", lambda prepared: opened.wait(60) and build(prepared))
        build, opened = engine.compiler.build, threading.Event()
        before = lazytpu.metrics()["stepwise"]
        results = bits(lengths)
        assert lazytpu.metrics()["stepwise"] >= before + len(lengths)
        opened.set()
        for job in engine.background.unfinished():
            assert job.done.wait(60)
    with lazytpu.mode("strict"), lazytpu.options(buckets="off"):
        assert all(map(torch.equal, results, bits(lengths)))
