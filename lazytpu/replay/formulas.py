"""The numbers that optimizers compute on the host, from a group's hyperparameters and the step.

Each formula is written with the operations of torch.optim (2.13), in their order, so that it gives the same bits. A
formula that no longer does is found out when a call is recorded: its number then has no explanation, and capture
refuses. Formulas are matched by value, so an optimizer that is not in torch.optim is served by the common ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

Numbers = dict[str, Any]


def of_step(optimizer: torch.optim.Optimizer, hypers: dict[str, Any], state: dict[str, float]) -> Numbers:
    """The numbers by formula that depend on the step. `state` are a parameter's states on the host as step() sees them
    after it advanced them ("step", for NAdam "mu_product"); empty when there are none.

    Entries whose name begins with "=" are no numbers of a program, but decide which ops the optimizer records: they are
    the same in every call of one capture.
    """
    compute = _compute(type(optimizer))
    if compute is None or not state.get("step"):
        return {}
    try:
        return compute(hypers, state)
    except (KeyError, ZeroDivisionError, OverflowError):  # of a subclass, or a step no formula has
        return {}


def common(hypers: dict[str, Any]) -> Numbers:
    """The numbers by formula that depend on the hyperparameters alone, for any optimizer."""
    found: Numbers = {}
    for name, value in _flat(hypers):
        found[name] = value
        found[f"={name}"] = bool(value)  # optimizers leave ops out for a momentum or weight decay of 0
        found[f"-{name}"] = -value
        found[f"1 - {name}"] = 1 - value
    lr = hypers.get("lr")
    if lr is not None:
        for name, value in _flat(hypers):
            if "decay" in name:
                found[f"1 - lr * {name}"] = 1 - lr * value
                found[f"lr * {name}"] = lr * value
                found[f"-lr * {name}"] = -lr * value
    return found


def _flat(hypers: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in hypers.items():
        if isinstance(value, tuple):
            yield from ((f"{name}[{i}]", v) for i, v in enumerate(value))
        else:
            yield name, value


def _adam(h: dict[str, Any], state: dict[str, float]) -> Numbers:
    lr, (beta1, beta2), step = h["lr"], h["betas"], state["step"]
    first, second = 1 - beta1**step, 1 - beta2**step
    return {
        "1 - betas[0] ** step": first,
        "1 - betas[1] ** step": second,
        "lr / (1 - betas[0] ** step)": lr / first,
        "lr / (1 - betas[0] ** step) * -1": (lr / first) * -1,
        "(1 - betas[1] ** step) ** 0.5": second**0.5,
    }


def _nadam(h: dict[str, Any], state: dict[str, float]) -> Numbers:
    lr, (beta1, beta2), step, product = h["lr"], h["betas"], state["step"], state["mu_product"]
    decay = h["momentum_decay"]
    mu = beta1 * (1.0 - 0.5 * (0.96 ** (step * decay)))
    following = beta1 * (1.0 - 0.5 * (0.96 ** ((step + 1) * decay)))
    return {
        "mu": mu,
        "(1 - betas[1] ** step) ** 0.5": (1 - beta2**step) ** 0.5,
        "1 - betas[1] ** step": 1 - beta2**step,
        "lr * (1 - mu) / (1 - mu_product) * -1": (lr * (1.0 - mu) / (1.0 - product)) * -1,
        "lr * mu_next / (1 - mu_product * mu_next) * -1": (lr * following / (1.0 - product * following)) * -1,
        "-lr * (1 - mu) / (1 - mu_product)": -lr * (1.0 - mu) / (1.0 - product),
        "-lr * mu_next / (1 - mu_product * mu_next)": (-lr * following) / (1.0 - product * following),
    }


def _radam(h: dict[str, Any], state: dict[str, float]) -> Numbers:
    lr, (beta1, beta2), step = h["lr"], h["betas"], state["step"]
    inf = 2 / (1 - beta2) - 1
    rho = inf - 2 * step * (beta2**step) / (1 - beta2**step)
    rect = ((rho - 4) * (rho - 2) * inf / ((inf - 4) * (inf - 2) * rho)) ** 0.5 if rho > 5 else 0
    unrectified = 0 if rect > 0 else 1.0
    first = 1 - beta1**step
    return {
        "=rectified": rho > 5,
        "1 - betas[0] ** step": first,
        "(1 - betas[1] ** step) ** 0.5": (1 - beta2**step) ** 0.5,
        "rect": rect,
        "lr * unrectified / (1 - betas[0] ** step) * -1": (lr * unrectified / first) * -1,
        "(1 - betas[1] ** step) ** 0.5 * (lr * rect / (1 - betas[0] ** step)) * -1": (
            ((1 - beta2**step) ** 0.5) * (lr * rect / first) * -1
        ),
    }


def _adagrad(h: dict[str, Any], state: dict[str, float]) -> Numbers:
    scale = 1 + (state["step"] - 1) * h["lr_decay"]
    return {"-lr / (1 + (step - 1) * lr_decay)": -h["lr"] / scale, "lr / (1 + (step - 1) * lr_decay)": h["lr"] / scale}


def advanced(optimizer: torch.optim.Optimizer, hypers: dict[str, Any], state: dict[str, float]) -> dict[str, float]:
    """A parameter's states on the host after step() advanced them: the count, and NAdam's product, in float32."""
    after = dict(state)
    if "step" in state:
        after["step"] = state["step"] + 1
    if "mu_product" in state and isinstance(optimizer, torch.optim.NAdam):
        mu = hypers["betas"][0] * (1.0 - 0.5 * (0.96 ** (after["step"] * hypers["momentum_decay"])))
        after["mu_product"] = float(np.float32(state["mu_product"]) * np.float32(mu))
    return after


_OF: dict[type, Callable[[dict[str, Any], dict[str, float]], Numbers]] = {
    torch.optim.Adam: _adam,
    torch.optim.Adamax: _adam,
    torch.optim.NAdam: _nadam,
    torch.optim.RAdam: _radam,
    torch.optim.Adagrad: _adagrad,
}


@functools.cache
def _compute(kind: type) -> Callable[[dict[str, Any], dict[str, float]], Numbers] | None:
    return next((compute for each, compute in _OF.items() if issubclass(kind, each)), None)
