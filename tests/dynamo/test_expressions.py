"""A graph that Dynamo made symbolic has one program for many sizes from its first call on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazytpu
from lazytpu.runtime.buffers import padded

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill all padding with NaN, or the largest integer."""
    monkeypatch.setattr(padded, "POISON", True)
    torch.compiler.reset()
    lazytpu.sync()
    with lazytpu.options(buckets=(16, 24)):
        yield
        lazytpu.sync()


def for_many(run: Callable[[], object]) -> list[bool]:
    """Return, for each program that a function compiles, whether it is for many sizes."""
    before = len(lazytpu.explain())
    run()
    lazytpu.sync()
    return ["one program for sizes" in str(reason) for reason in list(lazytpu.explain())[before:]]


def rows(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(0) * x.shape[0]).cumsum(0)


def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y.T).softmax(-1) @ y / x.shape[0]


TABLE = torch.rand(14, 4)


def positions(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x + table[: x.shape[0]]


def test_one_program_from_the_first_call_on() -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16, 20, 17):
            x = torch.rand(size, 4)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), rows(x))

    assert for_many(run) == [True] * 2


def test_forward_and_backward_are_one() -> None:
    torch.manual_seed(0)
    host, device = (nn.Sequential(nn.Linear(4, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 4)) for _ in range(2))
    device.load_state_dict(host.state_dict())
    models = host, device.to("tpu")

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.mean(0)).square().mean()

    losses = loss, torch.compile(loss, dynamic=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def run() -> None:
        for size in (11, 9, 16, 12):
            x = torch.rand(size, 4)
            for of, model, data, optimizer in zip(losses, models, (x, x.to("tpu")), optimizers, strict=True):
                of(model, data).backward()
                optimizer.step()
                optimizer.zero_grad()
            lazytpu.mark_step()

    assert for_many(run) == [True]
    for expected, actual in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach())


def test_two_sizes() -> None:
    compiled = torch.compile(pairs, dynamic=True)

    def run() -> None:
        for n, m in ((11, 13), (9, 15), (16, 10)):
            x, y = torch.rand(n, 4), torch.rand(m, 4)
            torch.testing.assert_close(compiled(x.to("tpu"), y.to("tpu")).cpu(), pairs(x, y))

    assert for_many(run) == [True]


def test_where_a_table_ends_there_is_no_other_size() -> None:
    compiled, table = torch.compile(positions, dynamic=True), TABLE.to("tpu")
    for size in (11, 9, 13, 14):
        x = torch.rand(size, 4)
        torch.testing.assert_close(compiled(x.to("tpu"), table).cpu(), positions(x, TABLE))


def test_sizes_of_eager_ops_follow_from_the_result() -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16):
            x = torch.rand(size, 4)
            torch.testing.assert_close((compiled(x.to("tpu")) * 2).sum(0).cpu(), (rows(x) * 2).sum(0))

    assert for_many(run) == [True]


def test_a_slice_by_eager_ops_shares_the_first_program() -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16):
            x = torch.rand(size, 4)
            torch.testing.assert_close((compiled(x.to("tpu"))[1:] * 2).cpu(), rows(x)[1:] * 2)

    assert for_many(run) == [True]


def test_a_view_of_a_tensor_shows_no_size() -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 14):
            x = torch.rand(size + 1, 4)
            torch.testing.assert_close(compiled(x.to("tpu")[1:]).cpu(), rows(x[1:]))

    assert for_many(run) == [False, True]


SHAPED: dict[str, Callable[..., torch.Tensor]] = {
    "limits": lambda x, y: x[: (x.shape[0] + 1) // 3].exp().sum(0) + x[y.shape[0] % 5 :].mean(0),
    "begins": lambda x, y: x[x.shape[0] // 2 : x.shape[0] // 2 + 3].cumsum(0) / y.shape[0],
    "a step": lambda x, y: (x[::2].cos() * x.shape[0]).sum(0) + y[1::3].amax(0),
    "columns": lambda x, y: (x.T @ x)[:, : x.shape[1] // 2].softmax(-1) + x.shape[0],
    "made of numbers": lambda x, y: torch.arange(x.shape[0] + y.shape[0], device=x.device)[x.shape[0] :] * x.shape[0],
    "filled": lambda x, y: torch.full((x.shape[0] * 2, y.shape[0] - 1), 0.5, device=x.device).sum(0) + y[1:, 0],
    "a pad": lambda x, y: functional.pad(x, (0, 0, x.shape[0] // 4, y.shape[0] % 3)).flip(0).cumsum(0),
    "joined": lambda x, y: torch.cat([x, y, x[1:]]).softmax(0)[x.shape[0] - 1 : x.shape[0] + y.shape[0]],
    "split": lambda x, y: torch.cat([part.exp() * n for n, part in enumerate(x.split([3, x.shape[0] - 3]))]),
    "reshaped": lambda x, y: x.reshape(x.shape[0] * 2, -1).T.reshape(-1, x.shape[0]).amax(1),
    "all pairs": lambda x, y: (x[:, None] - y[None]).square().sum(-1).flatten().cos() / (x.shape[0] * y.shape[0]),
    "repeated": lambda x, y: x.repeat(2, 3).reshape(-1, 3 * x.shape[0]).mean(1),
    "a diagonal": lambda x, y: torch.ones(x.shape[0], y.shape[0], device=x.device).tril(y.shape[0] - x.shape[0]).sum(1),
    "rolled": lambda x, y: x.roll(x.shape[0] // 3, 0) * y.roll(-1, 0).sum(),
    "windows": lambda x, y: x.unfold(0, 4, 2).amax(-1) + y[:1],
    "the least": lambda x, y: x[: min(x.shape[0], y.shape[0])] * y[: min(x.shape[0], y.shape[0])],
    "a branch": lambda x, y: x.exp() if x.shape[0] > y.shape[0] else y.sin() * x.shape[0],
    "written": lambda x, y: x.clone().index_fill_(0, torch.tensor([1], device=x.device), 2.0)[1 : x.shape[0] // 2],
}


def combinations() -> list[Any]:
    """The gate begins each function at one of the sizes, in turn."""
    at = [(11, 14), (13, 13), (16, 9)]
    every = itertools.product(enumerate(SHAPED), enumerate(at))
    return [pytest.param(name, first, marks=() if i % 3 == j else pytest.mark.long) for (i, name), (j, first) in every]


@pytest.mark.parametrize(("name", "first"), combinations())
def test_values_are_right_at_every_size(name: str, first: tuple[int, int]) -> None:
    compiled = torch.compile(SHAPED[name], dynamic=True)
    for n, m in (first, (9, 16), (16, 16), (15, 9), (12, 11), (10, 10), (21, 14), (9, 23), (24, 24)):
        x, y = torch.randn(n, 4), torch.randn(m, 4)
        torch.testing.assert_close(compiled(x.to("tpu"), y.to("tpu")).cpu(), SHAPED[name](x, y))


def test_graphs_after_a_break_have_the_sizes_of_those_before() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x[: x.shape[0] // 2]])
        torch._dynamo.graph_break()
        return (y.softmax(0) * y.shape[0])[1:].cumsum(0)

    compiled = torch.compile(broken, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16, 12, 10):
            x = torch.rand(size, 4)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), broken(x))

    assert for_many(run) == [True]


def test_a_graph_that_was_captured_for_one_size_is_captured_anew() -> None:
    x, compiled = torch.rand(11, 4).to("tpu"), torch.compile(rows, dynamic=True)
    with lazytpu.options(buckets="off"), lazytpu.mode("lazy"):
        compiled(x).cpu()
    assert for_many(lambda: compiled(x).cpu()) == [True]


def test_strides_that_do_not_follow_from_sizes() -> None:
    compiled = torch.compile(lambda x: (x * 3).exp(), dynamic=True)
    for x in (torch.rand(3, 5)[2:2, 1:4], torch.rand(11, 5)[2:10, 1:4], torch.rand(9, 1)[:1], torch.rand(4, 12).t()):
        on_device = x.to("tpu")
        result = compiled(on_device)
        torch.testing.assert_close(result.cpu(), (x * 3).exp())
        assert result.stride() == (on_device * 3).exp().stride()


def test_random_numbers_equal_eager_ones() -> None:
    compiled = torch.compile(lambda x: functional.dropout(x, 0.5), dynamic=True)
    for size in (11, 9, 16, 11):
        x = torch.rand(size, 4).to("tpu")
        torch.manual_seed(size)
        actual = compiled(x).cpu()
        torch.manual_seed(size)
        with lazytpu.options(buckets="off"):
            assert torch.equal(actual, functional.dropout(x, 0.5).cpu())


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_modes(mode: str) -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16):
            x = torch.rand(size, 4)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), rows(x))

    with lazytpu.mode(mode):
        programs = for_many(run)
    assert any(programs) == (mode == "lazy")
