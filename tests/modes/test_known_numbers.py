"""Numbers that the host knows are read without a cut: uploaded single elements, and results of exact ops on them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.frontend.tensors import value_of
from lazytpu.rehearsal.rehearse import rehearse
from tests.modes.test_constant_reads import Counted, on_a_thread


@pytest.fixture(params=["fused", "lazy"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with lazytpu.mode(request.param):
        yield request.param


def bits(number: Any) -> str:
    return f"{type(number).__name__} {number!r}"


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda x: x.item(),
    "added": lambda x: (x + 1).item(),
    "in place": lambda x: x.add_(1).sub_(0.1).item(),
    "a quotient": lambda x: (x / 3).tolist(),
    "compared": lambda x: bool(x > 2),
    "two": lambda x: (x * x).item(),
    "a list": lambda x: [y.item() for y in torch._foreach_add([x, x], 0.7)],  # pyright: ignore
    "lists in place": lambda x: [torch._foreach_mul_([x], 3), x.item()][1],  # pyright: ignore
    "a view": lambda x: x.view(1, 1)[0].add(2).tolist(),
    "cast": lambda x: x.to(torch.float32).item(),
    "cpu": lambda x: x.cpu().tolist(),
    "selected": lambda x: torch.where(x > 1, x, x - 1).item(),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", READS)
def test_number_is_read_without_a_cut(name: str, dtype: torch.dtype) -> None:
    read = READS[name]
    data = torch.full((3,), 2.0).to("tpu")
    for number in (1.0, 0.1, -0.0, float("nan"), float("inf"), 3e4):
        x = torch.tensor(number, dtype=dtype)
        on_device = x.to("tpu")
        pending = data.exp()
        counted = Counted() if number else None
        assert bits(read(on_device)) == bits(read(x))
        assert counted is None or (counted.steps, counted.wait_ms) == (0, 0.0), "the device was not used"
        del pending


def test_ops_after_a_read_use_the_bits_that_were_read() -> None:
    step = torch.tensor(0.1).to("tpu")
    weight = torch.ones(3).to("tpu")
    for _ in range(3):
        step += 0.7
        expected = torch.tensor(step.item()).to("tpu") * weight
        assert torch.equal(step * weight, expected)
        lazytpu.mark_step()
    assert torch.tensor(step.item()) == torch.tensor(0.1) + 0.7 + 0.7 + 0.7


def test_host_does_not_know_results_of_other_ops() -> None:
    x = torch.tensor(2.0).to("tpu")
    counted = Counted()
    assert x.exp().item() == pytest.approx(torch.tensor(2.0).exp().item(), rel=1e-6)
    assert counted.steps == 1
    total = (torch.ones(3).to("tpu") * x).sum()
    assert total.item() == 6
    assert (total + 1).item() == 7
    assert counted.steps == 3


def test_products_and_sums_may_be_contracted_by_the_device() -> None:
    x = torch.tensor(0.1).to("tpu")
    counted = Counted()
    (x * x + x).item()
    assert counted.steps == 1


def test_number_that_a_program_has_overwritten_is_read_from_it() -> None:
    x = torch.tensor(1.0).to("tpu")
    x.add_(1)
    lazytpu.mark_step()
    x.add_(1)
    counted = Counted()
    assert x.item() == 3
    assert counted.constant_reads == 0


def test_other_thread_reads_a_number() -> None:
    x = torch.tensor(5.0).to("tpu")
    pending = torch.ones(3).to("tpu") + 1
    y = x + 1
    assert on_a_thread(y.item) == [6.0]
    assert y.item() == 6.0 and pending.sum().item() == 6


def test_rehearsal_leaves_numbers_unchanged() -> None:
    step, data = torch.tensor(3.0).to("tpu"), torch.ones(4).to("tpu")
    seen: list[float] = []

    def body() -> None:
        torch._foreach_add_([step], 1)  # pyright: ignore
        seen.append(step.item())
        data.mul_(1 / step.item())

    programs = rehearse(body)
    assert len(programs) == 1 and seen[:2] == [4.0, 5.0]
    assert step.item() == 3.0
    assert data.tolist() == [1.0] * 4
    body()
    assert (step.item(), data[0].item()) == (4.0, 0.25)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW of lists": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW of single tensors": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_optimizer_with_its_step_on_the_device_runs_one_program(name: str, mode: str) -> None:
    """As after `torch.load(..., map_location="tpu")`."""
    first = model()
    optimizer = OPTIMIZERS[name](first.parameters())
    data = torch.randn(5, 4)
    for _ in range(2):
        first(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    file = io.BytesIO()
    torch.save((first.state_dict(), optimizer.state_dict()), file)
    losses: list[list[float]] = []
    for location in ("cpu", "tpu"):
        file.seek(0)
        weights, state = torch.load(file, map_location=location)
        resumed = model().to("tpu")
        resumed.load_state_dict(weights)
        optimizer = OPTIMIZERS[name](resumed.parameters())
        optimizer.load_state_dict(state)
        x, losses_here = data.to("tpu"), list[torch.Tensor]()
        for step in range(5):
            counted = Counted()
            loss = resumed(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses_here.append(loss.detach())
            lazytpu.mark_step()
            assert step == 0 or (counted.steps, counted.compiles) == (1, 0)
        steps = {float(s["step"]) for s in optimizer.state.values()}
        assert steps == {7.0}
        losses.append([loss.item() for loss in losses_here])
    assert losses[0] == losses[1]


def test_uploaded_number_may_be_donated() -> None:
    x = torch.tensor(1.0).to("tpu")
    for _ in range(3):
        x.mul_(2).exp_().log_()
        lazytpu.mark_step()
    assert value_of(x).buffer.host is None
    assert x.item() == pytest.approx(8.0, rel=1e-5)
