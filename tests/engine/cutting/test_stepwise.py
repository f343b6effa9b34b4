"""Op-by-op execution computes the values of the program, and keeps no more memory alive."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lazytpu
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla.program import Program
from tests.engine.conftest import Gate


def stepwise() -> int:
    return lazytpu.metrics()["stepwise"]


class Model(nn.Module):
    """Embedding, explicit attention, dropout, and a normalisation with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.heads = nn.Linear(8, 24, bias=False)  # the gradient of the bias of k is rounding error
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.norm(self.table(tokens))).chunk(3, -1)
        weights = nn.functional.dropout(torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1), 0.1, self.training)
        return self.out(torch.relu(weights @ v))


def train(steps: int, between: Callable[[int], None] = lambda step: None) -> list[torch.Tensor]:
    """Train and return the losses of the steps, then the parameters and buffers."""
    torch.manual_seed(3)
    model = Model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens, labels = torch.randint(0, 11, (4, 5)).to("tpu"), torch.randint(0, 11, (4, 5)).to("tpu")
    lazytpu.mark_step()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        between(step)
    return [t.detach().cpu() for t in (*losses, *model.parameters(), *model.buffers())]


def test_training_runs_op_by_op_until_its_program_is_compiled(gate: Gate) -> None:
    before = stepwise()

    def between(step: int) -> None:
        if step == 2:
            gate.open()

    got = train(5, between)
    assert stepwise() >= before + 2
    now = stepwise()
    again = train(5)
    assert stepwise() == now, "the programs are compiled"
    with lazytpu.options(background_compile=0):
        expected = train(5)
    for a, b, c in zip(got, again, expected, strict=True):
        torch.testing.assert_close(a, c, rtol=2e-5, atol=1e-6)
        torch.testing.assert_close(b, c, rtol=0, atol=0)


def test_random_numbers_equal_the_numbers_of_the_program(gate: Gate) -> None:
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(7)
        x = torch.randn(6, 5, device="tpu")
        y = nn.functional.dropout(torch.rand(6, 5, device="tpu"), 0.5)
        z = torch.randint(0, 100, (6,), device="tpu") + torch.randperm(6, device="tpu")
        lazytpu.mark_step()
        return [t.cpu() for t in (x, y, z)]

    before = stepwise()
    got = draw()
    assert stepwise() == before + 1
    gate.open()
    for a, b in zip(got, draw(), strict=True):
        assert torch.equal(a, b)
    assert stepwise() == before + 1


def test_writes_through_views_and_to_uninitialized_memory(gate: Gate) -> None:
    def write() -> list[torch.Tensor]:
        x = torch.arange(12.0).to("tpu").view(3, 4)
        kept = x.clone()
        x[1].mul_(10)
        x.t()[0, 2:] = -1.0
        new = torch.empty(2, 3, device="tpu")
        new[:, 1] = 5.0
        untouched = torch.empty(2, 2, device="tpu")
        read = untouched.add(0.0).sum() * 0
        torch._foreach_add_([x, new], 1.0)
        lazytpu.mark_step()
        return [t.cpu() for t in (x, kept, new[:, 1], read)]

    before = stepwise()
    got = write()
    assert stepwise() == before + 1
    gate.open()
    for a, b in zip(got, write(), strict=True):
        assert torch.equal(a, b)


def test_memory_is_freed_after_its_last_use(gate: Gate) -> None:
    """A chain of 20 results of 4 MB keeps only two alive at a time, and overwritten operands are donated."""
    gc.collect()
    others = lazytpu.metrics()["live_bytes"]
    x = torch.ones(1024, 1024).to("tpu")
    lazytpu.sync()
    lazytpu.reset_metrics()
    size = x.numel() * 4

    def chain(y: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            y = torch.tanh(y)
        return y

    y = chain(x)
    lazytpu.mark_step()
    assert stepwise() == 1
    assert lazytpu.metrics()["live_bytes"] - others < 2.1 * size
    assert lazytpu.metrics()["peak_bytes"] - others < 3.1 * size, "x, and an operand and the result of each op"
    del y
    gc.collect()
    lazytpu.reset_metrics()
    x.add_(1).mul_(2)
    lazytpu.mark_step()
    assert lazytpu.metrics()["peak_bytes"] - others < 1.1 * size, "updated in place"
    assert float(x[0, 0]) == 4.0


def test_shared_values_are_not_overwritten(gate: Gate) -> None:
    x = torch.full((64,), 3.0).to("tpu")
    shared = x.detach()
    copy = x.clone()
    x = x * 2
    copy.add_(1)
    lazytpu.mark_step()
    assert [float(t[0]) for t in (shared, x, copy)] == [3.0, 6.0, 4.0]


def test_failed_check_names_the_line_of_its_op(gate: Gate) -> None:
    """Both lookups share a program, which stores the line of one."""
    table = torch.ones(4, 2).to("tpu")
    good, bad = torch.tensor([1, 2]).to("tpu"), torch.tensor([1, 9]).to("tpu")
    a = nn.functional.embedding(good, table) + 1
    b = nn.functional.embedding(bad, table) * 2  # the failing line
    line = test_failed_check_names_the_line_of_its_op.__code__.co_firstlineno + 5
    lazytpu.mark_step()
    with pytest.raises(IndexError, match=rf"embedding.*test_stepwise.py:{line}"):
        b.cpu()
    assert a.tolist() == [[2.0, 2.0]] * 2


def test_check_of_a_dead_result_runs(gate: Gate) -> None:
    table, bad = torch.ones(4, 2).to("tpu"), torch.tensor([1, 9]).to("tpu")
    kept = table + 1
    nn.functional.embedding(bad, table)
    lazytpu.mark_step()
    assert kept.cpu().sum() == 16.0
    with pytest.raises(IndexError, match="embedding"):
        lazytpu.sync()


def test_checkpointed_layers_are_recomputed(gate: Gate) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).to(device)
        x = torch.linspace(0, 1, 12).view(2, 6).to(device).requires_grad_()
        loss = checkpoint(layer, checkpoint(layer, x, use_reentrant=False), use_reentrant=False).square().sum()
        loss.backward()
        return [loss.detach().cpu(), x.grad.cpu(), layer[0].weight.grad.cpu()]

    before = stepwise()
    got = run("tpu")
    assert stepwise() > before
    for a, b in zip(got, run("cpu"), strict=True):
        torch.testing.assert_close(a, b)


def test_equal_ops_are_compiled_once(gate: Gate) -> None:
    x = torch.rand(3, 17).to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()["compiles"]
    y = x
    for i in range(6):
        y = torch.atan2(y, x) + i
    del x
    lazytpu.mark_step()
    assert lazytpu.metrics()["compiles"] <= before + 4, "two ops, each with and without an operand that dies"


def test_repeated_step_is_analysed_once(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.engine.cutting import stepwise as module

    x = torch.rand(5, 3).to("tpu")
    lazytpu.sync()
    analysed = []
    real = module.steps_of
    monkeypatch.setattr(module, "steps_of", lambda *args: analysed.append(1) or real(*args))
    for _ in range(4):
        y = x.exp().sum(0)
        lazytpu.mark_step()
    assert len(analysed) == 1
    torch.testing.assert_close(y.cpu(), x.cpu().exp().sum(0))


def test_failed_op_keeps_earlier_results_and_old_contents(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier ops keep their values, and the operand of the failed write has its old contents."""
    x, w = torch.rand(5).to("tpu"), torch.ones(5).to("tpu")
    lazytpu.sync()
    run = Program.run

    def failing(program: Program, arrays: Sequence[Any]) -> Any:
        runs.append(program)
        if len(runs) == 3:
            raise RunError(program.name, "INTERNAL: the device is on fire")
        return run(program, arrays)

    runs: list[Program] = []
    monkeypatch.setattr(Program, "run", failing)
    first = x.exp()
    second = first.sin()
    w.add_(second)
    with pytest.raises(RunError, match="on fire"):
        lazytpu.mark_step()
    assert len(runs) == 3
    torch.testing.assert_close(second.cpu(), x.cpu().exp().sin())
    torch.testing.assert_close(first.cpu(), x.cpu().exp())
    assert w.tolist() == [1.0] * 5
    w.add_(second)
    torch.testing.assert_close(w.cpu(), 1 + second.cpu())


def test_ops_keep_the_default_dtype_of_their_recording(gate: Gate) -> None:
    x = torch.tensor([16777217, 3], device="tpu")
    lazytpu.mark_step()
    before = stepwise()
    single, single_equal = x * 0.1, x == 16777216.0
    torch.set_default_dtype(torch.float64)
    try:
        double, double_equal = x * 0.1, x == 16777216.0
        torch.set_default_dtype(torch.bfloat16)
        lazytpu.mark_step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert stepwise() == before + 1
    assert (single.dtype, single[0].item(), single_equal.tolist()) == (torch.float32, 1677721.625, [True, False])
    assert (double.dtype, double[0].item(), double_equal.tolist()) == (
        torch.float64,
        1677721.7000000002,
        [False, False],
    )
