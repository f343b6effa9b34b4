"""Handlers of signals run at once in the user's code, and after lazytpu's work otherwise."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from signal import getsignal as early_getsignal
from signal import signal as early_signal
from types import FrameType
from typing import Any

import pytest
import torch

from lazytpu import interrupts
from lazytpu.frontend.recording import miss

Ring = Callable[[], None]


class Bell(Exception):
    """The exception of the handler of these tests."""


def ring_now(signum: int = signal.SIGUSR1) -> None:
    signal.raise_signal(signum)


@pytest.fixture(autouse=True)
def bell() -> Iterator[list[str]]:
    """Make SIGUSR1 raise Bell; the list receives the name of the function in which it did."""
    torch.ones(1, device="tpu")
    places: list[str] = []

    def handler(signum: int, frame: FrameType | None) -> None:
        assert frame is not None
        places.append(frame.f_code.co_name)
        raise Bell

    before = signal.signal(signal.SIGUSR1, handler)
    yield places
    signal.signal(signal.SIGUSR1, before)
    assert sys.gettrace() is None


@pytest.fixture
def ring_inside(monkeypatch: pytest.MonkeyPatch) -> Ring:
    """Send the signal while the next new op is recorded."""
    infer = miss.infer

    def ringing(*args: Any) -> Any:
        monkeypatch.setattr(miss, "infer", infer)
        ring_now()
        return infer(*args)

    return lambda: monkeypatch.setattr(miss, "infer", ringing)


def test_the_users_code_is_interrupted_at_once(bell: list[str]) -> None:
    with pytest.raises(Bell):
        ring_now()
    assert bell == ["ring_now"]


def test_a_blocking_call_is_interrupted_at_once() -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    start = time.monotonic()
    with pytest.raises(Bell):
        time.sleep(30)
    assert time.monotonic() - start < 15


def test_an_op_is_recorded_before_the_handler_raises(ring_inside: Ring, bell: list[str]) -> None:
    x = torch.full((3, 5), 4.0).to("tpu")
    ring_inside()
    with pytest.raises(Bell):
        x.sqrt_()
    assert bell == ["test_an_op_is_recorded_before_the_handler_raises"]
    assert x.tolist() == [[2.0] * 5] * 3


def test_a_handler_that_does_not_raise_is_deferred_too(ring_inside: Ring) -> None:
    places: list[str] = []
    signal.signal(signal.SIGUSR1, lambda signum, frame: places.append(frame.f_code.co_name if frame else ""))
    ring_inside()
    y = torch.full((3, 6), 4.0).to("tpu").rsqrt()
    assert places == ["test_a_handler_that_does_not_raise_is_deferred_too"]
    assert y.tolist() == [[0.5] * 6] * 3


def test_two_signals_at_once_are_both_handled(ring_inside: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda signum, frame: seen.append(signum))
    infer = miss.infer

    def ringing(*args: Any) -> Any:
        monkeypatch.setattr(miss, "infer", infer)
        ring_now()
        ring_now(signal.SIGUSR2)
        return infer(*args)

    monkeypatch.setattr(miss, "infer", ringing)
    try:
        with pytest.raises(Bell):
            torch.ones(3, 7, device="tpu").expm1()
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_getsignal_returns_the_handler_that_was_set() -> None:
    def handler(signum: int, frame: FrameType | None) -> None: ...

    assert callable(signal.signal(signal.SIGUSR1, handler))
    assert signal.getsignal(signal.SIGUSR1) is handler
    assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is handler
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    with pytest.raises(TypeError):
        signal.signal(signal.SIGUSR1, "no handler")  # pyright: ignore[reportArgumentType]


def test_a_debuggers_tracing_continues(ring_inside: Ring) -> None:
    lines: list[int] = []

    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        lines.append(frame.f_lineno)
        return tracer

    def work() -> torch.Tensor:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        y = torch.full((3, 8), 1.0).to("tpu").log2()
        return y + 0

    ring_inside()
    sys.settrace(tracer)
    try:
        work()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert work.__code__.co_firstlineno + 3 in lines


# -- where Python drops a handler's exception, or C++ code must not raise


class Noisy:
    def __del__(self) -> None:
        ring_now()


class Node:
    pass


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    def work() -> None:
        Noisy()

    with pytest.raises(Bell):
        work()


def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost() -> None:
    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            ring_now()

    gc.callbacks.append(callback)
    try:
        with pytest.raises(Bell):
            gc.collect()
    finally:
        gc.callbacks.remove(callback)


def test_an_interrupt_in_a_weak_dictionary_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: weakref.WeakValueDictionary[str, Node] = weakref.WeakValueDictionary()
    node = Node()
    kept["node"] = node

    class Pending(list[Any]):
        def append(self, item: Any) -> None:
            ring_now()
            super().append(item)

    kept._iterating = {1}  # type: ignore[attr-defined]  # a removal then goes through the list
    kept._pending_removals = Pending()  # type: ignore[attr-defined]
    nodes = [node]
    del node
    with pytest.raises(Bell):
        nodes.clear()


def test_a_signal_while_c_code_asks_for_the_text_of_an_object() -> None:
    """torch's C++ code does so where it must not raise. Here zip and map are the C code: it finishes first."""
    texts: list[Any] = []
    with pytest.raises(Bell):
        texts.extend(zip(map(_thread.interrupt_main, [signal.SIGUSR1]), map(str, [5]), strict=True))
    assert texts == [(None, "5")]


# -- optimizers


class Slow(torch.optim.SGD):
    """Its step() is the user's code, and sends the signal in the middle."""

    def __init__(self, parameters: Any, rings: int):
        super().__init__(parameters, lr=1.0)
        self.rings = rings
        self.reached = 0

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for _ in range(self.rings):
            ring_now()
            self.reached += 1
        super().step()


def test_an_optimizer_finishes_its_step() -> None:
    p = torch.nn.Parameter(torch.zeros(3, device="tpu"))
    p.grad = torch.ones_like(p)
    optimizer = Slow([p], rings=1)
    with pytest.raises(Bell):
        optimizer.step()
    assert p.tolist() == [-1.0] * 3


def test_a_second_signal_does_not_wait_for_the_optimizer() -> None:
    p = torch.nn.Parameter(torch.zeros(3, device="tpu"))
    p.grad = torch.ones_like(p)
    optimizer = Slow([p], rings=2)
    with pytest.raises(Bell):
        optimizer.step()
    assert optimizer.reached == 1
    assert p.tolist() == [0.0] * 3
    assert (p + 1).tolist() == [1.0] * 3  # the first signal is handled only once


def test_hooks_of_a_backward_pass_on_the_cpu_are_interrupted_at_once(bell: list[str]) -> None:
    def hook(grad: torch.Tensor) -> None:
        ring_now()

    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    with pytest.raises(Bell):
        y.sum().backward()
    assert bell == ["ring_now"]


def test_functions_of_signal_that_were_imported_before(ring_inside: Ring, bell: list[str]) -> None:
    """`from signal import signal`, before the first use of the device, sets a wrapped handler as well."""

    def handler(signum: int, frame: FrameType | None) -> None:
        raise KeyError(frame.f_code.co_name if frame else "")

    early_signal(signal.SIGUSR1, handler)
    assert early_getsignal(signal.SIGUSR1) is handler
    ring_inside()
    with pytest.raises(KeyError, match="test_functions_of_signal"):
        torch.ones(3, 9, device="tpu").exp2()


def test_signal_that_wakes_no_thread_is_handled_in_a_wait(monkeypatch: pytest.MonkeyPatch):
    """Like a signal that arrives just before the main thread blocks: here another thread receives it."""
    monkeypatch.setattr(interrupts, "LOOKS", 0.05)
    changed = threading.Condition()

    def send() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    timer = threading.Timer(0.2, send)
    timer.start()
    try:
        with changed:
            with pytest.raises(Bell):
                interrupts.wait_for(changed, lambda: False, 20)
            assert not interrupts.wait_for(changed, lambda: False, 0)
            assert interrupts.wait_for(changed, lambda: True, 0)
    finally:
        timer.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
