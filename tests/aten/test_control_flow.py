"""torch.cond, while_loop and scan on the device: branches and loops of the program, with their checks and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.scan import scan

import lazytpu
from lazytpu.inspection.graphs import GRAPHS

X = torch.tensor([0.5, -2.0, 3.0, 1.0])
ROWS = torch.arange(20.0).reshape(5, 4) / 10


def truth(value: bool) -> torch.Tensor:
    return torch.tensor(value, device="tpu")


def text_of_last() -> str:
    return GRAPHS[-1].text()


@pytest.fixture(autouse=True)
def _lazy() -> Any:
    with lazytpu.mode("lazy"):
        yield


def test_branch_is_part_of_the_program() -> None:
    def true(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    def false(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    x = X.to("tpu")
    y = torch.cond(x.sum() > 0, true, false, (x,)) + torch.cond(x.sum() < 0, true, false, (x,))
    torch.testing.assert_close(y.cpu(), true(X) + false(X))
    assert text_of_last().count("lazytpu.if") == 2


@pytest.mark.parametrize("taken", [True, False])
def test_gradients_of_a_branch(taken: bool) -> None:
    def run(x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        torch.cond(condition, lambda x: x * x, lambda x: x.exp(), (x,)).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    expected = run(X.clone().requires_grad_(), torch.tensor(taken))
    torch.testing.assert_close(run(X.to("tpu").requires_grad_(), truth(taken)), expected)


def test_index_is_checked_if_its_branch_is_taken() -> None:
    x, index = X.to("tpu"), torch.tensor([0, 9], device="tpu")

    def true(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]

    def false(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[:2] * 1

    assert torch.equal(torch.cond(truth(False), true, false, (x, index)).cpu(), X[:2])
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 4"):
        torch.cond(truth(True), true, false, (x, index)).cpu()
    assert torch.equal((x + 1).cpu(), X + 1)


def test_a_loop_of_branches() -> None:
    def collatz(n: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        def body(n: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            after = torch.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, (n,))
            return after, steps + 1

        return while_loop(lambda n, steps: n > 1, body, (n, steps))[1]

    for start, steps in ((1, 0), (6, 8), (27, 111)):
        n = torch.tensor(start, device="tpu")
        assert collatz(n, torch.zeros_like(n)).item() == steps


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_scan_and_its_gradient() -> None:
    def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(state + row)
        return state, (state * row).sum()

    def run(device: str) -> list[torch.Tensor]:
        start, rows = (t.detach().clone().to(device).requires_grad_() for t in (X, ROWS))
        last, sums = scan(step, start, rows)
        (last.sum() + sums.sum()).backward()
        assert start.grad is not None and rows.grad is not None
        return [t.detach().cpu() for t in (last, sums, start.grad, rows.grad)]

    torch.testing.assert_close(run("tpu"), run("cpu"))


def test_scan_is_a_loop_of_the_program() -> None:
    last, sums = scan(lambda s, row: (s + row, s.sum()), X.to("tpu"), ROWS.to("tpu"), reverse=True)
    expected, sums_expected = scan(lambda s, row: (s + row, s.sum()), X, ROWS, reverse=True)
    torch.testing.assert_close((last.cpu(), sums.cpu()), (expected, sums_expected))
    assert any("lazytpu.while" in graph.text() for graph in GRAPHS[-2:])


def test_each_iteration_draws_different_numbers() -> None:
    def draw() -> torch.Tensor:
        return scan(lambda s, row: (s + 1, torch.rand_like(row)), X.to("tpu"), ROWS.to("tpu"))[1].cpu()

    torch.manual_seed(5)
    first, second = draw(), draw()
    assert len({*first.flatten().tolist()}) == first.numel()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(draw(), first)
