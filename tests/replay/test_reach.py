"""What the walk from a step function finds, and the numbers that optimizers' formulas give."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import nn
from worlds import model

from lazytpu.replay.formulas import advanced, common, of_step
from lazytpu.replay.guards import Guards
from lazytpu.replay.reach import Reach

LIMIT = 3


@dataclasses.dataclass
class Holder:
    net: nn.Module
    weights: list[torch.Tensor]
    never_named: int = 1


def used_by_another(x: torch.Tensor) -> torch.Tensor:
    return x * LIMIT


def walk(function: Any) -> Reach:
    return Reach.of(set(), [(function, "")])


def test_what_a_closure_reaches():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    holder = Holder(net, [torch.ones(2, device="tpu")])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    generator = torch.Generator("tpu")

    def inner(x: torch.Tensor) -> torch.Tensor:
        return holder.net(used_by_another(x)) + holder.weights[0] + torch.rand(2, device="tpu", generator=generator)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        schedule.step()
        return inner(x)

    found = walk(functools.partial(torch.no_grad()(step)))
    assert found.optimizers == [optimizer] and found.schedulers == [schedule] and found.generators == [generator]
    assert set(found.modules) == set(net.modules())
    names = {found.labels[place] for place in found.tensors}
    assert {"holder.net.0.weight", "holder.weights[0]"} <= names
    values = {found.labels[place]: value for place, value in found.simple.items()}
    assert values["LIMIT"] == 3 and "holder.never_named" not in values
    assert values["holder.net.training"] is True


def test_libraries_are_not_walked_through():
    found = walk(lambda x: torch.nn.functional.relu(x))
    assert not found.tensors and not found.modules and len(found.objects) < 5


def test_data_is_not_looked_into():
    data = [torch.ones(1, device="tpu")] * 5000
    assert not walk(lambda i: data[i]).tensors
    assert walk(lambda i: data[:10][i]).objects


def test_tied_and_nested_things_are_found_once():
    net = model()
    net.again = net[0]  # pyright: ignore[reportArgumentType]
    net.settings = {"nested": [{"deep": net[0].weight}]}  # pyright: ignore
    found = walk(lambda x: net(x))
    assert len({id(t) for t in found.tensors.values()}) == 4
    assert len(found.modules) == len(set(found.modules)) == 4


def test_guards_see_single_changes():
    net: Any = model(nn.ReLU())
    net.plain, net.items = 1.5, [1, 2]
    guards = Guards(walk(lambda x: net(x)), set())
    assert guards.broken() is None
    net.plain = float("1.5")  # another object of the same bits
    assert guards.broken() is None
    net.plain = 2
    assert guards.broken() == "net.plain changed"
    net.plain = 1.5
    net.items[0] = True
    assert guards.broken() == "net.items[0] changed"
    net.items[0] = 1
    net.items.append(3)
    assert guards.broken() == "the length of net.items changed"
    del net.items[2]
    handle = net[1].register_forward_hook(lambda *_: None)
    assert "hook" in str(guards.broken())
    handle.remove()
    net[1].inplace = True
    assert guards.broken() == "net.1.inplace changed"
    net[1].inplace = False
    handle = net[0].weight.register_hook(lambda grad: grad)
    assert guards.broken() == "the hooks of a tensor changed"
    handle.remove()
    weight = net[0].weight
    net[0].weight = nn.Parameter(weight.detach())
    assert guards.broken() == "net.0.weight changed"
    net[0].weight = weight
    net[0].weight.requires_grad_(False)
    assert guards.broken() == "requires_grad of a tensor changed"


def test_adams_numbers():
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], lr=0.1, weight_decay=0.01)
    hypers: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    found = {**common(hypers), **of_step(optimizer, hypers, advanced(optimizer, hypers, {"step": 2.0}))}
    assert found["1 - lr * weight_decay"] == 1 - 0.1 * 0.01 and found["-lr"] == -0.1 and found["=eps"] is True
    assert found["lr / (1 - betas[0] ** step) * -1"] == (0.1 / (1 - 0.9**3)) * -1
    assert found["(1 - betas[1] ** step) ** 0.5"] == (1 - 0.999**3) ** 0.5


@pytest.mark.parametrize("hypers", [{"rate": 1.0}, {"lr": 0.1, "betas": (1.0, 0.9)}])
def test_optimizers_with_other_hyperparameters(hypers: dict[str, Any]):
    """A subclass may have others than the class that it derives from: it has the common formulas."""

    class Mine(torch.optim.Adam):
        pass

    optimizer = Mine([nn.Parameter(torch.ones(1))])
    assert of_step(optimizer, hypers, {"step": 1.0}) == {}
