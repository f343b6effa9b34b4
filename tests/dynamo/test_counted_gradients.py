"""Gradients of graphs with data-dependent sizes, whose backward pass repeats counted ops, and the order of draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from lazytpu.dynamo.counted_part import draws, writes
from tests.dynamo.counting import mask

pytestmark = pytest.mark.usefixtures("captured")

WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "a table": lambda p, b, m: ((b[m] * p).sum(), b.add_(1))[0],
    "a mask": lambda p, b, m: ((b[m] * p).sum(), m.fill_(False))[0],
    "a table that is selected from": lambda p, b, m: (
        (b.index_select(0, m.nonzero()[:, 0]) * p).sum(),
        b.mul_(10),
    )[0],
}


@pytest.mark.parametrize("name", WRITES)
def test_gradient_uses_values_from_before_a_write(name: str):
    p = torch.tensor(2.0, device="tpu", requires_grad=True)
    b = torch.arange(1.0, 7).to("tpu")
    m = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool).to("tpu")
    torch.compile(WRITES[name])(p, b, m).backward()
    assert p.grad is not None
    assert p.grad.item() == 8


def test_gradient_of_dropout_after_a_mask_uses_the_same_draw():
    p = torch.ones(3, 4).to("tpu").requires_grad_()
    x = torch.arange(1.0, 13).view(3, 4).to("tpu")
    m = torch.ones(3, 4, dtype=torch.bool)
    m[1, :2] = False
    loss = torch.compile(lambda p, x, m: functional.dropout((x * p)[m], 0.5, True).sum())(p, x, m.to("tpu"))
    loss.backward()
    assert p.grad is not None
    assert loss.item() == p.grad.sum().item()


@torch.library.custom_op("lazytpu_tests::counting_noise", mutates_args=())
def _counting_noise(x: torch.Tensor) -> torch.Tensor:
    _CALLS.append(1)
    return torch.full_like(x, float(len(_CALLS)))


_CALLS: list[int] = []


@_counting_noise.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _drawing(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


def _not_drawing(x: torch.Tensor) -> torch.Tensor:
    return x * 0


IMPURE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "user's op": _counting_noise,
    "branch": lambda v: torch.cond(v.sum() > -1e9, _drawing, _not_drawing, (v,)),
}


@pytest.mark.parametrize("name", IMPURE)
def test_gradient_uses_what_an_impure_op_gave(name: str):
    """Its result has a size that depends on values, but a second call gives another one."""

    def function(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = x[m]
        noise = IMPURE[name](chosen.detach())
        return (chosen * noise).sum(), noise.sum()

    x = torch.rand(16).to("tpu").requires_grad_()
    loss, total = torch.compile(function)(x, mask(5).to("tpu"))
    loss.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.sum(), total.detach())


CHANGES: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "data": (lambda x, m: (x[m] * x[m]).sum(), lambda x, m: x.data.mul_(100)),
    "values": (lambda x, m: (x[m] * x[m]).sum(), lambda x, m: x.mul_(100)),
    "mask": (lambda x, m: x[m.nonzero()[:, 0]].square().sum(), lambda x, m: m.zero_()),
    "result": (lambda x, m: (x.exp()[m].square().sum(), x.exp()), lambda x, m: None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_gradient_uses_values_from_before_a_later_change(name: str):
    """Eager code saves the chosen elements, which the script cannot change between the forward and backward pass."""
    function, change = CHANGES[name]
    start, m = torch.rand(16), mask(5)
    grads: list[torch.Tensor] = []
    for device, call in (("cpu", function), ("tpu", torch.compile(function))):
        x, selected = start.clone().to(device).requires_grad_(), m.clone().to(device)
        loss = call(x, selected)
        with torch.no_grad():
            change(x, selected)
            if isinstance(loss, tuple):
                loss[1].data.zero_()
                loss = loss[0]
        loss.backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


def test_draws_in_a_branch_keep_their_order():
    def function(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x[m].sum()
        drawn = torch.cond(total > -1e9, _drawing, _not_drawing, (total,))
        return drawn, torch.rand(3, device=x.device)

    x, m = torch.rand(16).to("tpu"), mask(5).to("tpu")
    torch.manual_seed(3)
    want = function(x, m)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.compile(function)(x, m), want)


def test_order_of_draws_includes_checkpointed_ones():
    """An op that draws may be an argument of a node, which saves the state of the generator."""
    body = torch.fx.Graph()
    x = body.placeholder("x")
    save = torch._prims.rng_prims.run_and_save_rng_state
    dropped = body.call_function(save, (torch.ops.aten.native_dropout.default, x, 0.5, True))
    doubled = body.call_function(torch.ops.aten.mul.Tensor, (x, 2))
    written = body.call_function(torch.ops.aten.copy_.default, (x, doubled))
    attention = body.call_function(torch.ops.lazytpu.attention_dropout.default, (x, x, x, None, False, None, 0.5))
    assert [draws(node) for node in (dropped, doubled, written, attention)] == [True, False, False, True]
    assert [writes(node) for node in (dropped, doubled, written)] == [False, False, True]
