"""Fused mode: the preparation of data and weights is not part of the step's program."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lazytpu
from lazytpu.frontend.recording import step_starts
from lazytpu.frontend.recording.required_cuts import STARTS
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.cuts import AGAIN, BEGIN, BLOCK, BRANCH

pytestmark = pytest.mark.usefixtures("empty_cache")  # these count compilations


def compiles() -> int:
    return lazytpu.metrics()["compiles"]


class Scale(nn.Module):
    """A transform of the data: a module without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


def train(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_initialisation_does_not_leak_into_the_first_step() -> None:
    torch.manual_seed(0)
    with torch.device("tpu"):
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
        x = torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, x, optimizer)
    optimizer.zero_grad()
    lazytpu.mark_step()
    before = compiles()
    train(model, x, optimizer)
    optimizer.zero_grad()
    lazytpu.mark_step()
    assert compiles() == before, "the first step's program has no weights to make, so it is the second's, too"
    names = [graph.text() for graph in lazytpu.graphs()[-2:]]
    assert "random_bits" in names[0]
    assert "random_bits" not in names[1]


@pytest.mark.parametrize("transform", [lambda x: (x - 0.5) / 0.25, Scale()], ids=["ops", "module"])
def test_paths_of_the_data_do_not_multiply_the_step(transform: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 5).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = torch.rand(4, 5)

    def prepared(kind: int) -> Tensor:
        x = source.to("tpu")
        if kind & 1:
            x = x.flip(1)
        if kind & 2:
            x = x * 1.5 + 0.25
        return transform(x)

    train(model, prepared(0), optimizer)
    lazytpu.sync()
    started = compiles()
    for kind in (1, 2, 3, 0, 3, 2, 1, 0):
        train(model, prepared(kind), optimizer)
    lazytpu.sync()
    # Three other preparations of a batch. In the loop gradients die before the cut, but not in the last step before
    # sync(): at most one more program of the step.
    assert compiles() - started <= 4
    assert any(cut.cause == BEGIN for cut in lazytpu.explain_cut(20))


def test_tensors_made_by_a_forward_belong_to_the_step() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(9, 4))

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[0], device=x.device) + 1
            return self.table[places] * x

    model = Model().to("tpu")
    x = torch.ones(3, 4).to("tpu")
    with torch.no_grad():
        for _ in range(2):
            lazytpu.sync()
            before = len(lazytpu.explain_cut(100))
            y = model(x)
            assert len(lazytpu.explain_cut(100)) == before
    assert y.tolist() == [[1.0] * 4] * 3


def test_the_results_equal_lazy_mode() -> None:
    results: list[list[Tensor]] = []
    for mode in ("fused", "lazy"):
        torch.manual_seed(1)
        model = nn.Linear(3, 2).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with lazytpu.mode(mode):
            for i in range(3):
                x = torch.rand(5, 3, device="tpu") + i
                train(model, x.roll(i, 0), optimizer)
            results.append([p.detach().cpu() for p in model.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_loop_of_plain_ops_is_cut_where_it_repeats() -> None:
    x = torch.ones(4).to("tpu")

    def iterate(y: Tensor, times: int) -> Tensor:
        for _ in range(times):
            y = (y * 0.5 + x).abs() - 0.0
        return y

    lazytpu.sync()
    y = iterate(x, 400)
    steps, before = lazytpu.metrics()["steps"], compiles()
    y = iterate(y, 800)
    assert lazytpu.metrics()["steps"] - steps >= 5, "a trace is not much longer than what is needed to see a loop"
    assert compiles() <= before + 1, "the caller holds the y that it gave: one result more in the trace that made it"
    assert lazytpu.explain_cut()[-1].cause == BLOCK
    torch.testing.assert_close(y.cpu(), torch.full((4,), 2.0))


class Net(nn.Module):
    """Two layers, with a read between them if `reads`."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.reads = nn.Linear(6, 5), nn.Linear(5, 3), reads

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        if self.reads and bool((x >= 0).all()):
            x = x + 1.0
        return self.b(x)


def products(since: int) -> int:
    """Return how many programs with a matrix product were compiled."""
    return sum("dot" in graph.text() for graph in lazytpu.graphs()[since:])


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_results_that_grow_do_not_compile_the_model_again(reads: bool, trained: bool) -> None:
    torch.manual_seed(0)
    on_cpu = Net(reads)
    model = Net(reads).to("tpu")
    model.load_state_dict(on_cpu.state_dict())
    batches = [torch.rand(4, 6) for _ in range(7)]
    if trained:  # its forward pass has the same states as the evaluation
        model(batches[0].to("tpu")).sum().backward()
        lazytpu.sync()
    before = len(lazytpu.graphs())
    results = []
    for net, device in ((model, "tpu"), (on_cpu, "cpu")):
        grown: Tensor | None = None
        with torch.no_grad():
            for x in batches:
                y = net(x.to(device))
                grown = y if grown is None else torch.cat([grown, y])
        assert grown is not None
        results.append(grown.cpu())
    torch.testing.assert_close(*results)
    assert products(before) <= (6 if reads else 3), "with the first two uses of its results, and without one"


def test_the_iterations_of_a_sampler_are_steps() -> None:
    torch.manual_seed(0)
    on_cpu = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6))
    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6)).to("tpu")
    model.load_state_dict(on_cpu.state_dict())
    scales, start = torch.linspace(0.1, 0.9, 40), torch.rand(3, 6)
    results, after = [], list[int]()
    for net, device in ((on_cpu, "cpu"), (model, "tpu")):
        x, alphas = start.to(device), scales.to(device)
        with torch.no_grad():
            for t in range(39, 0, -1):
                x = (x * alphas[t - 1] + net(x) * (1 - alphas[t])).clamp(-1, 1)
                after.append(compiles())
        results.append(x.cpu())
    torch.testing.assert_close(*results)
    assert after[-1] == after[-35], "no program is made after the fourth round"


def test_calls_without_an_op_between_them_are_steps_and_an_inner_loop_is_none() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(5):
                x = x + self.inner(x).sum()
            return x

    model, x = Outer().to("tpu"), torch.ones(2, 6).to("tpu")
    with torch.no_grad():
        lazytpu.sync()
        steps = lazytpu.metrics()["steps"]
        for _ in range(4):
            x = model(x)
        lazytpu.sync()
    assert lazytpu.metrics()["steps"] - steps == 4
    assert [cut.cause for cut in lazytpu.explain_cut()[-4:-1]] == [AGAIN] * 3


def test_a_training_step_that_calls_a_model_twice_is_one_program() -> None:
    torch.manual_seed(0)
    model, teacher = Net().to("tpu"), Net().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(4, 6).to("tpu")
    lazytpu.sync()
    steps = lazytpu.metrics()["steps"]
    for _ in range(3):
        optimizer.zero_grad()
        first = model(x)
        with torch.no_grad():
            target = teacher(x)
        loss = (first - target).square().mean() + model(x * 2).abs().mean()
        loss.backward()
        optimizer.step()
    lazytpu.sync()
    assert lazytpu.metrics()["steps"] - steps == 3
    assert loss.isfinite().item()


def test_a_use_that_comes_often_becomes_one_program_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lazytpu.frontend.recording.required_cuts.BRANCHES_PER_RECORD", 1)
    torch.manual_seed(0)
    on_cpu = Net()
    model = Net().to("tpu")
    model.load_state_dict(on_cpu.state_dict())
    x, counts = torch.rand(3, 6), list[int]()
    on_device = x.to("tpu")
    with torch.no_grad():
        model(on_device).abs().sum().item()
        model(on_device).neg().sum().item()
        for _ in range(12):
            steps = lazytpu.metrics()["steps"]
            result = model(on_device).exp().sum()
            torch.testing.assert_close(result.cpu(), on_cpu(x).exp().sum())
            counts.append(lazytpu.metrics()["steps"] - steps)
    assert counts[0] == counts[1] == 2
    assert counts[-1] == 1


def test_results_with_many_uses_take_bounded_memory() -> None:
    torch.manual_seed(0)
    on_cpu = Net()
    model = Net().to("tpu")
    model.load_state_dict(on_cpu.state_dict())
    x = torch.rand(3, 6)
    results, on_device = list[Tensor](), x.to("tpu")
    with torch.no_grad(), lazytpu.options(background_compile=0):
        for i in range(2, 40):
            results.append(model(on_device).expand(i, *on_cpu(x).shape).sum(0).cpu())
        torch.testing.assert_close(results, [on_cpu(x) * float(i) for i in range(2, 40)])
        model(on_device)
        state = recorder().state
        assert len(state.marks.starts) <= STARTS
        assert len(state.marks.branches) <= STARTS
        assert state.marks.ends == BRANCH
        lazytpu.sync()


def test_a_long_trace_is_not_searched_at_each_of_its_records(monkeypatch):
    """Whether autograd saves a trace for a backward pass is checked again when the trace is an eighth longer."""
    x = torch.ones(2).to("tpu").requires_grad_()
    lazytpu.sync()
    r = recorder()
    searched = []

    class Values(list):
        def __iter__(self):
            searched.append(len(self))
            return super().__iter__()

    y = x * 2
    for _ in range(100):
        y = (y * 1.5).exp()
    monkeypatch.setattr(r, "values", Values(r.values))
    depth = r.state.depth
    for longer in range(depth, depth + depth // 8):
        assert step_starts.keeps_graph(r, r.state), longer
    assert len(searched) <= 1
    monkeypatch.undo()
    lazytpu.sync()
    assert not step_starts.keeps_graph(r, r.state)  # the answer for an earlier trace is not reused
    y.sum().backward()
