"""Two equal worlds: a step function as it is, and the same captured; both get the same calls, and must stay equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import lazytpu
from lazytpu.frontend.torch_private import pytree
from lazytpu.replay.step import StepFunction


@dataclass
class World:
    """A step function and what it trains."""

    step: Any
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    extra: Any = None

    def state(self) -> dict[str, torch.Tensor]:
        """All that the step changes, on the CPU."""
        found = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
        for i, parameter in enumerate(self.model.parameters()):
            found[f"grad {i}"] = torch.zeros(0) if parameter.grad is None else parameter.grad.cpu()
        if self.optimizer is not None:
            for i, state in enumerate(self.optimizer.state.values()):
                found.update({f"{i}.{k}": v.cpu() for k, v in state.items() if isinstance(v, torch.Tensor)})
        if self.scheduler is not None:
            found["lr"] = torch.tensor(self.scheduler.get_last_lr())
        if isinstance(self.extra, dict):
            found.update({f"extra {k}": v.detach().cpu() for k, v in self.extra.items()})
        return found


def model(*layers: nn.Module, width: int = 8) -> nn.Module:
    """A small network on tpu with the same weights each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, width), *(layers or (nn.GELU(),)), nn.Linear(width, 3)).to("tpu")


def batch(seed: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and targets of one call."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=made).to("tpu"), torch.randn(size, 3, generator=made).to("tpu")


def train(world: World) -> Callable[..., torch.Tensor]:
    """The plain step: zero_grad, forward, backward, step."""
    net, optimizer = world.model, world.optimizer
    assert optimizer is not None

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def agree(
    make: Callable[[], World],
    *,
    calls: int = 8,
    replays: int | None = None,
    arguments: Callable[[int], tuple[Any, ...]] = batch,
    between: Callable[[World, int], None] | None = None,
    **settings: Any,
) -> StepFunction:
    """Run both worlds `calls` times, `between` each two calls in both; results and states must be equal bit for bit.

    `replays`: how many calls must have run captured at least, all but 5 by default. Returns the captured function.
    """
    results: list[list[Any]] = []
    states: list[dict[str, torch.Tensor]] = []
    captured: Any = None
    for capture in (False, True):
        torch.tpu.manual_seed_all(0)  # pyright: ignore[reportAttributeAccessIssue]
        world = make()
        if capture:
            captured = world.step = lazytpu.step(world.step, **settings)
        found: list[Any] = []
        for i in range(calls):
            if between is not None:
                between(world, i)
            # what XLA fuses decides about the last bit: programs have the same bounds in both, and none runs op by op
            with lazytpu.options(background_compile=0):
                lazytpu.mark_step()
                result = world.step(*arguments(i))
                lazytpu.mark_step()
            found.append(pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), result))
            del result
        results.append(found)
        states.append(world.state())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)
    assert states[1].keys() == states[0].keys()
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
    assert captured.replays >= (calls - 5 if replays is None else replays), captured.reason
    return captured
