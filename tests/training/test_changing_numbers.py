"""Hyperparameters that change every step never compile a step anew, after the programs of warming up."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lazytpu

pytestmark = pytest.mark.usefixtures("fresh_traces")

# Arguments of optimizers that differ from the defaults.
ARGUMENTS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5}, "Adagrad": {"lr": 0.1}}
# Steps until an optimizer's last path is recorded: RAdam rectifies from its sixth step on.
WARM_UP = {"RAdam": 7}
OPTIMIZERS = [
    (name, foreach)
    for name, optimizer in sorted(vars(torch.optim).items())
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
    for foreach in ((True, False) if "foreach" in inspect.signature(optimizer).parameters else (None,))
]


def programs_made() -> int:
    explained = lazytpu.explain()
    return len(explained) + explained.forgotten


def programs(step: Callable[[int], Any], warm_up: int, steps: int = 5) -> list[str]:
    """Why programs were made in `steps` steps after `warm_up` others."""
    for i in range(warm_up):
        step(i)
        lazytpu.mark_step()
    before = programs_made()
    for i in range(warm_up, warm_up + steps):
        step(i)
        lazytpu.mark_step()
    new = programs_made() - before
    return [explanation.text for explanation in list(lazytpu.explain())[-new:]] if new else []


def change(group: dict[str, Any], i: int) -> None:
    """Another value for every hyperparameter."""
    for name, value in list(group.items()):
        if type(value) is float and value:
            group[name] = value * (1 - 0.001 * i)
        elif name in ("betas", "etas"):
            group[name] = tuple(number * (1 - 0.001 * i) for number in value)
    group["weight_decay"] = 0.01 + 0.001 * i


@pytest.mark.parametrize(("name", "foreach"), OPTIMIZERS)
def test_changing_hyperparameters_compile_nothing(name: str, foreach: bool | None) -> None:
    parameters = [nn.Parameter(torch.rand(3, 2).to("tpu"))]
    if name != "Muon":  # takes matrices only
        parameters.append(nn.Parameter(torch.rand(4).to("tpu")))
    arguments = {**ARGUMENTS.get(name, {}), **({} if foreach is None else {"foreach": foreach})}
    optimizer = getattr(torch.optim, name)(parameters, **arguments)

    def step(i: int) -> None:
        for group in optimizer.param_groups:
            change(group, i)
        optimizer.zero_grad()
        torch.stack([(p * p).sum() for p in parameters]).sum().backward()
        optimizer.step()

    assert programs(step, WARM_UP.get(name, 3)) == []


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "warm up from 0": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: i / 4),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_compile_nothing(name: str) -> None:
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    x = torch.ones(4, 3).to("tpu")

    def step(i: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        scheduler.step()

    assert programs(step, 3) == []


def attention(x: torch.Tensor, p: float) -> torch.Tensor:
    heads = x[None, None]
    return F.scaled_dot_product_attention(heads, heads * 2, heads * 3, dropout_p=p)


NUMBERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "dropout": lambda x, p: F.dropout(x, p),
    "alpha_dropout": lambda x, p: F.alpha_dropout(x, p, training=True),
    "feature_dropout": lambda x, p: F.dropout1d(x, p),
    "attention dropout": attention,
    "label smoothing": lambda x, p: F.cross_entropy(x, torch.arange(3, device=x.device), label_smoothing=p),
    "loss scale": lambda x, p: x.mean() * (1 / p),
    "temperature": lambda x, p: (x / p).softmax(-1),
    "moving average": lambda x, p: x.lerp(x + 1, p),
    "batch norm's momentum": lambda x, p: F.batch_norm(
        x, *(torch.full((4,), n, device=x.device) for n in (0.0, 1.0)), training=True, momentum=p
    ),
    "batch norm's eps": lambda x, p: F.batch_norm(x, None, None, training=True, eps=p),
    "layer norm's eps": lambda x, p: F.layer_norm(x, (4,), eps=p),
    "focal loss": lambda x, p: (-((1 - x.softmax(-1)) ** (2 + p)) * x.log_softmax(-1)).sum(),
    "generalized mean": lambda x, p: x.clamp(min=1e-6).pow(2 + p).mean().pow(1 / (2 + p)),
    "huber loss": lambda x, p: F.huber_loss(x, x * 0, delta=p),
    "smooth L1 loss": lambda x, p: F.smooth_l1_loss(x, x * 0, beta=p),
    "clipping": lambda x, p: x.clamp(-p, p),
    "leaky_relu": lambda x, p: F.leaky_relu(x, p),
    "elu": lambda x, p: F.elu(x, p),
    "normal noise": lambda x, p: x + torch.randn_like(x) * p,
    "uniform noise": lambda x, p: x + torch.empty_like(x).uniform_(-p, p),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_changing_numbers_of_a_model_compile_nothing(name: str) -> None:
    weight = nn.Parameter(torch.rand(3, 4).to("tpu"))

    def step(i: int) -> None:
        NUMBERS[name](weight * 1, 0.1 + 0.07 * i).sum().backward()
        weight.grad = None

    assert programs(step, 3) == []


def test_loss_scaler_and_clipped_gradients_compile_nothing() -> None:
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 3).to("tpu")

    def step(i: int) -> None:
        optimizer.zero_grad()
        scale = 1024.0 / (i + 1)
        (model(x).mean() * scale).backward()
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(1 / scale)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0 + i)
        optimizer.step()

    assert programs(step, 3) == []
