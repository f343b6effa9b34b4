"""Exceptions of hooks leave backward() unchanged, also from autograd's thread for tpu."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazytpu


class Stop(Exception):
    pass


def stop(*args: Any) -> None:
    raise Stop("here")


def on_the_tensor(w: torch.Tensor, y: torch.Tensor) -> None:
    w.register_hook(stop)


def after_accumulation(w: torch.Tensor, y: torch.Tensor) -> None:
    w.register_post_accumulate_grad_hook(stop)


def before_the_node(w: torch.Tensor, y: torch.Tensor) -> None:
    y.grad_fn.register_prehook(stop)


def after_the_node(w: torch.Tensor, y: torch.Tensor) -> None:
    y.grad_fn.register_hook(stop)


@pytest.mark.parametrize("hook", [on_the_tensor, after_accumulation, before_the_node, after_the_node])
def test_the_error_is_that_of_the_hook(hook: Callable[..., None]) -> None:
    w = torch.ones(3).to("tpu").requires_grad_()
    y = w * 2
    hook(w, y)
    with pytest.raises(Stop, match="here") as caught:
        y.sum().backward()
    assert any(frame.name == "stop" for frame in traceback.extract_tb(caught.value.__traceback__))
    v = torch.ones(3).to("tpu").requires_grad_()
    (gradient,) = torch.autograd.grad((v * 3).sum(), v)
    assert gradient.tolist() == [3.0] * 3


def test_on_a_thread_that_recorded_nothing() -> None:
    w = torch.ones(3).to("tpu").requires_grad_()
    w.register_hook(stop)
    loss, errors = (w * 2).sum(), []

    def run() -> None:
        try:
            loss.backward()
        except Stop as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_an_error_of_the_cpus_backward_is_unchanged() -> None:
    w = torch.ones(3, requires_grad=True)
    w.register_hook(stop)
    with pytest.raises(Stop):
        (w * 2).sum().backward()


def test_a_caught_error_keeps_nothing_alive() -> None:
    def fail() -> weakref.ref[torch.Tensor]:
        w = torch.ones(3).to("tpu").requires_grad_()
        w.register_hook(stop)
        try:
            (w * 2).sum().backward()
        except Stop:
            lazytpu.mark_step()
        return weakref.ref(w)

    assert fail()() is None
