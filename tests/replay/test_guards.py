"""What a captured call depends on, changed between calls: it is recorded anew, and later captured beside the first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from worlds import World, agree, batch, model, train

import lazytpu

SCALE = 2.0


def sgd(net: nn.Module) -> World:
    world = World(None, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    world.step = train(world)
    return world


def test_another_batch_size_is_a_variant_of_its_own():
    captured = agree(
        lambda: sgd(model(nn.ReLU())), calls=20, replays=12, arguments=lambda i: batch(i, size=6 if i % 3 else 4)
    )
    assert captured.captures == 2


def test_training_flag():
    """Both variants are found again, without being recorded anew."""

    def between(world: World, i: int) -> None:
        world.model.train(i % 10 < 5)

    captured = agree(lambda: sgd(model(nn.Dropout(0.5), nn.BatchNorm1d(8))), calls=30, replays=22, between=between)
    assert captured.captures == 2


def test_requires_grad():
    def between(world: World, i: int) -> None:
        world.model[0].requires_grad_(not 7 <= i < 13)  # pyright: ignore[reportIndexIssue]

    agree(lambda: sgd(model(nn.ReLU())), calls=20, replays=10, between=between)


def test_hooks():
    seen: list[str] = []

    def between(world: World, i: int) -> None:
        if i == 8:
            world.model[1].register_forward_hook(lambda *_: seen.append("forward"))  # pyright: ignore
        if i == 9:
            world.model[0].weight.register_hook(lambda grad: grad * 2)  # pyright: ignore

    agree(lambda: sgd(model(nn.ReLU())), calls=12, replays=4, between=between)
    assert seen  # the call after it was registered, and those until the next capture


def test_a_parameter_replaced():
    def between(world: World, i: int) -> None:
        linear: Any = world.model[0]  # pyright: ignore[reportIndexIssue]
        if i == 6:
            linear.weight.data = linear.weight.data * 2
        if i == 9:
            linear.bias = nn.Parameter(linear.bias.detach() + 1)

    agree(lambda: sgd(model(nn.ReLU())), calls=14, replays=4, between=between)


def changing(step: Callable[..., Any], values: list[Any], change: Callable[[Any], None]) -> list[float]:
    """Results of captured calls, each value set for six calls."""
    found: list[float] = []
    captured = lazytpu.step(step)
    for value in values:
        change(value)
        found.append([captured(torch.ones(2, device="tpu")).sum().item() for _ in range(6)][-1])
    assert captured.replays
    return found


def test_a_global(monkeypatch: pytest.MonkeyPatch):
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    set_scale = lambda v: monkeypatch.setitem(globals(), "SCALE", v)  # noqa: E731
    assert changing(step, [2.0, 3.0, 2.0], set_scale) == [4.0, 6.0, 4.0]


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def test_a_global_of_a_function_it_calls(monkeypatch: pytest.MonkeyPatch):
    set_scale = lambda v: monkeypatch.setitem(globals(), "SCALE", v)  # noqa: E731
    assert changing(lambda x: helper(x) + 1, [2.0, 3.0], set_scale) == [6.0, 8.0]


def test_a_variable_of_the_enclosing_function():
    scale: Any = 1.0

    def change(value: Any) -> None:
        nonlocal scale
        scale = value

    assert changing(lambda x: x * scale, [1.0, True, 5, -0.0], change) == [2.0, 2.0, 10.0, 0.0]


class Settings:
    scale = 1.0

    def __init__(self) -> None:
        self.offset = 0.0
        self.weights = [1.0, 2.0]
        self.mode = "plus"

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self.weights[1] if self.mode == "plus" else -x


def test_attributes_lists_and_class_attributes(monkeypatch: pytest.MonkeyPatch):
    settings = Settings()

    def step(x: torch.Tensor) -> torch.Tensor:
        return settings.scaled(x) + settings.offset

    def change(number: int) -> None:
        if number == 1:
            settings.offset = 1.0
        if number == 2:
            settings.weights[1] = 3.0
        if number == 3:
            monkeypatch.setattr(Settings, "scale", 2.0)
        if number == 4:
            settings.mode = "minus"

    assert changing(step, list(range(5)), change) == [4.0, 6.0, 8.0, 14.0, 0.0]


def test_an_attribute_of_a_module():
    net: Any = model()
    net.scale = 1.0

    def change(value: float) -> None:
        net.scale = value

    assert changing(lambda x: x * net.scale, [1.0, 3.0], change) == [2.0, 6.0]


def test_plain_values_among_the_arguments():
    captured = lazytpu.step(lambda x, *, power: (x + 1) ** power)
    x = torch.ones(1, device="tpu")
    for power in (1, 2, 1.0, 2, 1):
        for _ in range(5):
            assert captured(x, power=power).item() == 2.0**power
    assert captured.captures == 3 and captured.replays >= 3 * 1 + 2 * 5


def test_arguments_in_containers():
    def step(pair: dict[str, Any], flag: bool) -> Any:
        return {"sum": pair["a"] + pair["more"][0], "flag": flag, "same": pair["a"]}

    captured = lazytpu.step(step)
    for i in range(8):
        a, b = torch.full((2,), float(i), device="tpu"), torch.ones(2, device="tpu")
        found = captured({"a": a, "more": (b,)}, flag=True)
        assert found["sum"].tolist() == [i + 1.0] * 2 and found["flag"] is True and found["same"] is a
    assert captured.replays == 5


def test_the_same_tensor_twice():
    captured = lazytpu.step(lambda x, y: x.add_(1) + y)
    for i in range(12):
        x, y = torch.zeros(1, device="tpu"), torch.full((1,), 5.0, device="tpu")
        assert (captured(x, x) if i % 2 else captured(x, y)).item() == (2.0 if i % 2 else 6.0)
        assert x.item() == 1.0
    assert captured.captures == 2


def test_grad_mode_and_precision():
    net = model(nn.ReLU())

    def step(x: torch.Tensor) -> torch.Tensor:
        out = net(x)
        if torch.is_grad_enabled():
            out.sum().backward()
        return out.detach()

    captured = lazytpu.step(step)
    x, _ = batch(0)
    for _ in range(6):
        captured(x)
    assert captured.replays == 2 or captured.replays == 1
    with torch.no_grad():
        before = net[0].weight.grad.clone()  # pyright: ignore
        for _ in range(6):
            captured(x)
        assert torch.equal(net[0].weight.grad, before)  # pyright: ignore
    assert captured.captures == 2


def test_modes_and_torch_modes_pass_by():
    captured = lazytpu.step(lambda x: x + 1)
    x = torch.ones(2, device="tpu")
    for _ in range(5):
        captured(x)
    replays = captured.replays
    for mode in ("strict", "debug"):
        with lazytpu.mode(mode):
            assert captured(x).tolist() == [2.0, 2.0] and captured.reason is not None
    nested = lazytpu.step(lambda x: captured(x) * 2)
    for _ in range(5):
        assert nested(x).tolist() == [4.0, 4.0]
    assert captured.replays == replays and nested.replays == 2


def test_threads():
    """One captured function, called by several threads, each with tensors of its own."""
    captured = lazytpu.step(lambda x, y: x * y)
    failures: list[Any] = []

    def work(seed: int) -> None:
        for i in range(20):
            x, y = torch.full((3,), float(seed), device="tpu"), torch.full((3,), float(i), device="tpu")
            if captured(x, y).tolist() != [float(seed * i)] * 3:
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and captured.replays


def test_what_others_recorded_before_the_call():
    """A tensor that another thread's trace computes, and one that this thread's does."""
    captured = lazytpu.step(lambda x: x * 2)
    for i in range(6):
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda made=made, i=i: made.append(torch.ones(2, device="tpu") * i))
        thread.start()
        thread.join()
        assert captured(made[0]).tolist() == [2.0 * i] * 2
        assert captured(torch.ones(2, device="tpu") + i).tolist() == [2.0 * i + 2] * 2
    assert captured.replays == 9
