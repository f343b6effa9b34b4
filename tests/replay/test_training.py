"""Training steps of all kinds, captured and not: the same bits."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from worlds import World, agree, batch, model, train

import lazytpu

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamw one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "nadam one by one": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=False),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "radam one by one": lambda p: torch.optim.RAdam(p, lr=0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str):
    def make() -> World:
        net = model()
        world = World(None, net, OPTIMIZERS[name](net.parameters()))
        world.step = train(world)
        return world

    agree(make, calls=12, replays=4)


def test_groups_with_settings_of_their_own():
    def make() -> World:
        net = model()
        first, second = list(net[0].parameters()), list(net[2].parameters())
        optimizer = torch.optim.AdamW(
            [{"params": first, "lr": 0.1, "weight_decay": 0.0}, {"params": second, "betas": (0.8, 0.9)}], lr=0.01
        )
        world = World(None, net, optimizer)
        world.step = train(world)
        return world

    agree(make)


@pytest.mark.parametrize("inside", [True, False])
def test_schedules(inside: bool):
    def make() -> World:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
        world = World(None, net, optimizer, scheduler)
        plain = train(world)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = plain(x, y)
            scheduler.step()
            return loss

        world.step = step if inside else plain
        return world

    def between(world: World, i: int) -> None:
        if i and not inside:
            world.scheduler.step()

    agree(make, between=between)


def test_a_new_learning_rate_is_recorded_once():
    def make() -> World:
        net = model()
        world = World(None, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        world.step = train(world)
        return world

    def between(world: World, i: int) -> None:
        assert world.optimizer is not None
        if i >= 8:
            world.optimizer.param_groups[0]["lr"] = 0.1 / i

    agree(make, calls=14, replays=14 - 5 - 1, between=between)


def test_dropout_draws_the_same_numbers():
    def make() -> World:
        net = model(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2))
        world = World(None, net, torch.optim.SGD(net.parameters(), lr=0.1))
        world.step = train(world)
        return world

    def between(world: World, i: int) -> None:
        if i == 7:
            torch.tpu.manual_seed(5)  # pyright: ignore[reportAttributeAccessIssue]
        torch.rand(2, device="tpu")  # others draw, too

    agree(make, calls=10, between=between)


def test_batch_norm_and_moving_averages():
    def make() -> World:
        net = model(nn.BatchNorm1d(8), nn.ReLU())
        average = copy.deepcopy(net)
        world = World(None, net, torch.optim.AdamW(net.parameters(), lr=0.01), extra=dict(average.named_parameters()))
        plain = train(world)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = plain(x, y)
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), net.parameters()):
                    slow.lerp_(fast, 0.1)
            return loss

        world.step = step
        return world

    agree(make)


def test_a_copy_of_the_parameters_in_the_step():
    """copy_() of a whole tensor shares its value: both storages hold it, before and after."""

    def make() -> World:
        net = model()
        target = copy.deepcopy(net)
        world = World(None, net, torch.optim.SGD(net.parameters(), lr=0.1), extra=dict(target.named_parameters()))
        plain = train(world)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                for old, new in zip(target[0].parameters(), net[0].parameters()):
                    old.copy_(new)
            loss = plain(x, y)
            with torch.no_grad():
                for old, new in zip(target[2].parameters(), net[2].parameters()):
                    old.copy_(new)
            return loss

        world.step = step
        return world

    agree(make)


def test_clipped_gradients_and_a_dict_of_results():
    def make() -> World:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            optimizer.zero_grad()
            out = net(x)
            loss = nn.functional.mse_loss(out, y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            return {"loss": loss, "norm": norm, "out": (out.detach()[1:, 0], out.detach().t()), "number": 3}

        return World(step, net, optimizer)

    agree(make)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulated_gradients(set_to_none: bool):
    """Two step functions share a model: one accumulates gradients, the other one uses them."""

    def make() -> World:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        made: dict[str, Any] = {}

        def accumulate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            lazytpu.mark_step()
            return loss.detach()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            lazytpu.mark_step()

        def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = made["accumulate"](x, y)
            loss = loss + made["accumulate"](y[:, :1].expand(-1, 4).contiguous(), y)
            made["update"]()
            return loss

        world = World(both, net, optimizer)
        made.update(accumulate=accumulate, update=update)
        world.extra = made
        return world

    torch.manual_seed(0)
    plain, captured = make(), make()
    accumulate = lazytpu.step(captured.extra["accumulate"])
    update = lazytpu.step(captured.extra["update"])
    captured.extra.update(accumulate=accumulate, update=update)
    for i in range(10):
        assert torch.equal(plain.step(*batch(i)).cpu(), captured.step(*batch(i)).cpu())
    plain.extra = captured.extra = None
    for name, tensor in plain.state().items():
        assert torch.equal(tensor, captured.state()[name]), name
    assert accumulate.replays >= 10 and update.replays >= 4


def test_autocast_in_the_step():
    def make() -> World:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("tpu", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(net(x).float(), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return World(step, net, optimizer)

    agree(make)


def test_checkpoints_between_calls():
    """Saving reads states on the host; loading writes parameters in place, and replaces the optimizer's states."""

    def make() -> World:
        net = model()
        world = World(None, net, torch.optim.AdamW(net.parameters(), lr=0.01))
        world.step = train(world)
        return world

    saved = io.BytesIO()

    def between(world: World, i: int) -> None:
        assert world.optimizer is not None
        if i == 7:
            saved.seek(0)
            torch.save({"model": world.model.state_dict(), "optimizer": world.optimizer.state_dict()}, saved)
        if i == 9:
            saved.seek(0)
            found = torch.load(saved)
            world.model.load_state_dict(found["model"])
            world.optimizer.load_state_dict(found["optimizer"])

    agree(make, calls=16, replays=7, between=between)


def test_reading_and_changing_parameters_between_calls():
    def make() -> World:
        net = model()
        world = World(None, net, torch.optim.SGD(net.parameters(), lr=0.1))
        world.step = train(world)
        world.extra = {}
        return world

    def between(world: World, i: int) -> None:
        weight = world.model[0].weight  # pyright: ignore[reportIndexIssue]
        world.extra[f"{i}"] = weight.detach().clone()  # shares the value of the parameter
        if i in (7, 9):
            with torch.no_grad():
                weight.mul_(0.5)  # pending when the call begins
        if i == 8:
            world.extra["alias"] = weight.detach()

    agree(make, calls=14, replays=0, between=between)


def test_values_that_are_passed_on():
    """The old parameters go into a buffer and into the result, and the new ones into the parameters."""

    def make() -> World:
        net = model()
        old = {name: torch.zeros_like(p) for name, p in net.named_parameters()}

        def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            with torch.no_grad():
                for name, parameter in net.named_parameters():
                    old[name].copy_(parameter)
                    parameter.mul_(0.9)
                return [each.clone() for each in old.values()]

        return World(step, net, extra=old)

    agree(make)
