"""An optimizer's first step runs the program of all its steps: the state that it creates is not recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "AdamW, one parameter at a time": lambda p: torch.optim.AdamW(p, foreach=False),
    "fused AdamW": lambda p: torch.optim.AdamW(p, fused=True),
    "AMSGrad": lambda p: torch.optim.Adam(p, amsgrad=True, capturable=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "NAdam": torch.optim.NAdam,
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD, one parameter at a time": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, maximize=True, foreach=False),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "RAdam": torch.optim.RAdam,
    "Rprop": torch.optim.Rprop,
}


def train(device: str, make: Callable[[Any], torch.optim.Optimizer], steps: int = 3) -> tuple[list[int], list[Any]]:
    """Return the number of programs after each step, and the final parameters."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    x = torch.arange(6.0).view(2, 3).to(device)
    optimizer = make(model.parameters())
    lazytpu.sync()
    before, counts = len(lazytpu.graphs()), list[int]()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        lazytpu.mark_step()
        counts.append(len(lazytpu.graphs()) - before)
    return counts, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_steps_are_one_program(name: str) -> None:
    make = OPTIMIZERS[name]
    counts, parameters = train("tpu", make)
    torch.testing.assert_close(parameters, train("cpu", make)[1] if "AMS" not in name else parameters)
    assert counts == [1, 1, 1]
    assert train("tpu", make)[0][-1] == 0  # another model of this kind has its program


class Signs(torch.optim.Optimizer):
    """An optimizer that does not disable gradients, as some outside torch."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p]["average"] = torch.zeros_like(p)
            average = self.state[p]["average"]
            average.lerp_(p.grad.data, 0.1)
            p.data.sub_(average.sign(), alpha=0.1)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.ASGD,  # its averages become numbers: a small program
        torch.optim.Adafactor,  # reads each parameter's norm
        lambda p: torch.optim.Muon([q for q in p if q.ndim == 2]),
        Signs,
    ],
    ids=["ASGD", "Adafactor", "Muon", "gradients on"],
)
def test_the_model_is_in_one_program(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    class Sine(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sin()

    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(Sine(3, 2, bias=False), nn.Linear(2, 2, bias=False)).to(device)
        x, optimizer = torch.arange(6.0).view(2, 3).to(device), make(model.parameters())
        lazytpu.sync()
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
        return [p.detach().cpu() for p in model.parameters()]

    before = len(lazytpu.graphs())
    torch.testing.assert_close(run("tpu"), run("cpu"))
    with_model = [graph for graph in lazytpu.graphs()[before:] if "lazytpu.sin " in graph.text()]
    assert len(with_model) == 1


def test_momentum_that_begins_as_zero() -> None:
    p, on_cpu = (torch.ones(2, device=device, requires_grad=True) for device in ("tpu", "cpu"))
    unused = torch.ones(2, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([p, unused, on_cpu], lr=1.0, momentum=0.5)
    for _ in range(2):
        p.grad, on_cpu.grad = torch.ones(2, device="tpu"), torch.ones(2)
        optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].tolist() == [1.5, 1.5]
    assert unused not in optimizer.state
    assert p.tolist() == on_cpu.tolist() == [-1.5, -1.5]
    again = torch.optim.SGD([p], lr=1.0, momentum=0.5)
    again.load_state_dict({"state": {}, "param_groups": again.state_dict()["param_groups"]})
    again.step()
    assert again.state[p]["momentum_buffer"].tolist() == [1.0, 1.0]


class Scratch(torch.optim.SGD):
    """An optimizer that fills memory at each step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            assert p.grad is not None
            p.sub_(torch.full_like(p, 0.5) * p.grad)


def test_memory_that_is_filled_at_each_step_is_recorded_from_the_second_on() -> None:
    counts, parameters = train("tpu", Scratch, 5)
    torch.testing.assert_close(parameters, train("cpu", Scratch, 5)[1])
    assert counts[-1] <= counts[1] <= 2


def test_computations_of_a_closure_are_recorded() -> None:
    class Biased(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.ones(2, device=x.device)

    model = Biased(3, 2).to("tpu")
    x = torch.ones(2, 3, device="tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    lazytpu.sync()
    optimizer.step(closure)
    lazytpu.mark_step()
    assert "ones" in lazytpu.graphs()[-1].text() or "constant" in lazytpu.graphs()[-1].text()
    before = len(lazytpu.graphs())
    optimizer.step(closure)
    lazytpu.mark_step()
    assert len(lazytpu.graphs()) == before


def test_the_state_of_a_gradient_scaler() -> None:
    model, x = nn.Linear(3, 2).to("tpu"), torch.ones(2, 3, device="tpu")
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("tpu", init_scale=8.0)
    lazytpu.sync()
    counts = list[int]()
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        lazytpu.mark_step()
        counts.append(len(lazytpu.graphs()))
    assert counts[1] == counts[2]
    assert scaler.get_scale() == 8.0


def test_states_share_no_memory() -> None:
    parameters = [torch.ones(2, device="tpu", requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters, lr=1.0)
    for scale, parameter in enumerate(parameters, start=1):
        parameter.grad = torch.full((2,), float(scale), device="tpu")
    optimizer.step()
    averages = [optimizer.state[p][key].tolist() for p in parameters for key in ("exp_avg", "exp_avg_sq")]
    torch.testing.assert_close(averages, [[0.1] * 2, [0.001] * 2, [0.2] * 2, [0.004] * 2])


def test_with_ops_that_run_at_once_the_state_is_an_op_like_others() -> None:
    with lazytpu.mode("strict"):
        _, parameters = train("tpu", torch.optim.AdamW)
    torch.testing.assert_close(parameters, train("cpu", torch.optim.AdamW)[1])


def test_an_optimizer_that_defines_equality() -> None:
    class Equal(torch.optim.AdamW):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

    counts, parameters = train("tpu", Equal)
    torch.testing.assert_close(parameters, train("cpu", Equal)[1])
    assert counts[0] == counts[-1] <= 1
