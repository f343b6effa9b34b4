"""Steps with a Python loop in them: the values and gradients of the CPU, from programs with loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lazytpu
from lazytpu.passes.loops import roll_loops
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import rehearse
from lazytpu.rehearsal.tpu_report import translated

Step = Callable[[str, int], list[Tensor]]


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll loops of few iterations, too."""
    monkeypatch.setattr(roll_loops, "LEAST", 12)
    monkeypatch.setattr(roll_loops, "STACKED", 0)


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """Compile each step as one program, at once."""
    with lazytpu.options(background_compile=0):
        yield


def grads(*modules: nn.Module) -> list[Tensor]:
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def ode(device: str, steps: int) -> list[Tensor]:
    """A classical Runge-Kutta solver, with time as a Python float, through a small network."""
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    y, h = torch.randn(5, 2).to(device), 1 / steps

    def f(t: float, y: Tensor) -> Tensor:
        return net(torch.cat([y, torch.ones(5, 1, device=device) * t], 1))

    for i in range(steps):
        t = i * h
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    loss = y.square().mean()
    loss.backward()
    return [loss.detach(), *grads(net)]


def maml(device: str, steps: int) -> list[Tensor]:
    """An inner optimisation that the outer gradient goes through."""
    net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    x, y, query, target = (torch.randn(10, 1).to(device) for _ in range(4))
    weights = list(net.parameters())

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        w1, b1, w2, b2 = weights
        return F.mse_loss(F.linear(torch.relu(F.linear(x, w1, b1)), w2, b2), y)

    for _ in range(steps):
        gradients = torch.autograd.grad(loss_of(x, y), weights, create_graph=True)
        weights = [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]
    loss = loss_of(query, target)
    loss.backward()
    return [loss.detach(), *grads(net)]


def recurrent(device: str, steps: int) -> list[Tensor]:
    """A cell in a loop over tokens, with outputs in a list, and others in an array."""
    embedding, cell, out = nn.Embedding(11, 4), nn.GRUCell(4, 8), nn.Linear(8, 11)
    for module in (embedding, cell, out):
        module.to(device)
    tokens = torch.randint(0, 11, (5, steps + 1)).to(device)
    h, outputs, norms = torch.zeros(5, 8, device=device), [], torch.zeros(steps, 5, device=device)
    for t in range(steps):
        h = cell(embedding(tokens[:, t]), h)
        outputs.append(out(h))
        norms[t] = h.detach().square().sum(1)
    loss = F.cross_entropy(torch.stack(outputs, 1).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return [loss.detach(), norms, *grads(embedding, cell, out)]


def sinkhorn(device: str, steps: int) -> list[Tensor]:
    """Optimal transport: a fixed point in two vectors."""
    a = torch.randn(6, 3).to(device).requires_grad_()
    cost = (a[:, None] - torch.randn(7, 3).to(device)).square().sum(-1)
    f, g = torch.zeros(6, device=device), torch.zeros(7, device=device)
    for _ in range(steps):
        f = -0.5 * torch.logsumexp((g[None] - cost) / 0.5, 1)
        g = -0.5 * torch.logsumexp((f[:, None] - cost) / 0.5, 0)
    loss = (torch.exp((f[:, None] + g[None] - cost) / 0.5) * cost).sum()
    loss.backward()
    assert a.grad is not None
    return [loss.detach(), a.grad]


def power(device: str, steps: int) -> list[Tensor]:
    """The largest eigenvalue, whose gradient compares a norm with 0: a barrier is in the loop."""
    m = torch.randn(6, 6)
    m = (m @ m.T).to(device).requires_grad_()
    v = torch.randn(6).to(device)
    for _ in range(steps):
        v = m @ v
        v = v / v.norm()
    value = v @ (m @ v)
    value.backward()
    assert m.grad is not None
    return [value.detach(), m.grad]


def run(step: Step, device: str, steps: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [value.cpu() for value in step(device, steps)]


def notes_of(step: Step, steps: int) -> list[str]:
    """Return the notes of `roll-loops` for the programs of a step, after comparing its results with the CPU's."""
    before = len(lazytpu.explain())
    for actual, expected in zip(run(step, "tpu", steps), run(step, "cpu", steps), strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-4, atol=1e-5)
    return [note for explanation in lazytpu.explain()[before:] for note in explanation.notes]


@pytest.mark.usefixtures("rolled")
@pytest.mark.parametrize("step", [ode, maml, recurrent, sinkhorn, power])
def test_values_and_gradients(step: Step) -> None:
    notes = notes_of(step, 9)
    assert len(notes) >= 2, "forward and backward"
    assert all(note.startswith("rolled ") for note in notes)


@pytest.mark.usefixtures("rolled")
def test_random_numbers_equal_the_unrolled_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(device: str, steps: int) -> list[Tensor]:
        x, kept = torch.ones(8, 4, device=device), []
        for _ in range(steps):
            mask = torch.rand(8, 4, device=device) < 0.7
            x = torch.tanh(x + 0.1 * torch.randn(8, 4, device=device)) * mask
            kept.append(mask)
        return [x, torch.stack(kept)]

    before = len(lazytpu.explain())
    actual = run(noisy, "tpu", 7)
    assert any(explanation.notes for explanation in lazytpu.explain()[before:])
    monkeypatch.setattr(roll_loops, "LEAST", 10_000)
    x, kept = run(lambda device, steps: noisy(device, steps + 1), "tpu", 7)
    assert torch.equal(actual[1], kept[:7])
    assert x.shape == actual[0].shape


@pytest.mark.usefixtures("rolled")
def test_check_in_a_loop_is_reported() -> None:
    def lookup(steps: int) -> Tensor:
        table = torch.arange(40.0).reshape(10, 4).to("tpu")
        index, x = torch.tensor([1, 2, 3]).to("tpu"), torch.zeros(3, 4).to("tpu")
        for i in range(steps):
            x = torch.sin(x + table[index + i])
        return x

    before = len(lazytpu.explain())
    assert lookup(7).cpu().isfinite().all()
    assert any(explanation.notes for explanation in lazytpu.explain()[before:])
    with pytest.raises(IndexError):
        lookup(8).cpu()


def test_long_inner_optimisation_is_rolled_by_default() -> None:
    notes = notes_of(maml, 24)
    assert any("rolled 23 x" in note or "rolled 24 x" in note for note in notes)


@pytest.mark.long
def test_solver_of_240_steps() -> None:
    with lazytpu.mode("lazy"):  # fused mode cuts where shorter solvers have ended before
        notes = notes_of(ode, 240)
    assert len(notes) == 2


@pytest.mark.parametrize("target", ["cpu", "v6e"])
def test_model_of_twelve_layers_is_not_rolled(target: str) -> None:
    """Each layer has its own weights and states, which a loop would have to stack in every step."""
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(12)]
    model = nn.Sequential(*layers).to("tpu")
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(2, 5, 8).to("tpu")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    programs = rehearse(step, "cpu" if target == "cpu" else "tpu")
    assert sum(len(program.records) for program in programs) > 500
    passes = [done for program in programs for done in translated(program, Target.parse(target)).passes]
    assert "roll-loops" in [done.name for done in passes]
    assert not [note for done in passes for note in done.notes]
