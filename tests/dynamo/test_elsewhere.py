"""A graph that Dynamo made symbolic has one program for many sizes from its first call on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazytpu
from lazytpu.runtime import padded

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All padding holds NaN, or the largest integer."""
    monkeypatch.setattr(padded, "POISON", True)
    torch.compiler.reset()
    lazytpu.sync()
    with lazytpu.options(buckets=(16, 24)):
        yield
        lazytpu.sync()


def for_many(run: Callable[[], object]) -> list[bool]:
    """Of the programs that a function makes, which are for many sizes."""
    before = len(lazytpu.explain())
    run()
    lazytpu.sync()
    return ["one program for sizes" in str(each) for each in list(lazytpu.explain())[before:]]


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
    for one, other in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach())


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


def test_what_eager_ops_do_with_the_result_shows_no_size() -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16):
            x = torch.rand(size, 4)
            torch.testing.assert_close((compiled(x.to("tpu")) * 2).cpu(), rows(x) * 2)

    assert for_many(run) == [False, True]


def test_what_is_part_of_a_tensor_shows_no_size() -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 14):
            x = torch.rand(size + 1, 4)
            torch.testing.assert_close(compiled(x.to("tpu")[1:]).cpu(), rows(x[1:]))

    assert for_many(run) == [False, True]


def test_random_numbers_are_those_of_eager_code() -> None:
    compiled = torch.compile(lambda x: functional.dropout(x, 0.5), dynamic=True)
    for size in (11, 9, 16, 11):
        x = torch.rand(size, 4).to("tpu")
        torch.manual_seed(size)
        given = compiled(x).cpu()
        torch.manual_seed(size)
        with lazytpu.options(buckets="off"):
            assert torch.equal(given, functional.dropout(x, 0.5).cpu())


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_modes(mode: str) -> None:
    compiled = torch.compile(rows, dynamic=True)

    def run() -> None:
        for size in (11, 9, 16):
            x = torch.rand(size, 4)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), rows(x))

    with lazytpu.mode(mode):
        made = for_many(run)
    assert any(made) == (mode == "lazy")
