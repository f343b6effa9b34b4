"""Streams and events: one queue; a wait cuts and waits."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.frontend.device.streams import TpuEvent, TpuStream
from tests.timing import measured


def pending() -> tuple[torch.Tensor, Callable[[], bool]]:
    """Return an uncomputed tensor, and a function that tells whether it still is."""
    lazytpu.sync()
    x = torch.ones(3).to("tpu") + 1
    storage = x.untyped_storage()
    return x, lambda: storage._value.buffer is None  # type: ignore[attr-defined]


WAITS: dict[str, Callable[[], object]] = {
    "torch.tpu": lambda: torch.get_device_module("tpu").synchronize(),
    "accelerator": lambda: torch.accelerator.synchronize(),
    "stream": lambda: torch.Stream(device="tpu").synchronize(),
    "stream query": lambda: torch.Stream("tpu:0").query(),
    "current stream": lambda: torch.accelerator.current_stream().synchronize(),
    "timed event": lambda: torch.Event("tpu", enable_timing=True).record(),
    "event of a stream": lambda: torch.Stream(device="tpu").record_event().synchronize(),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_runs_recorded_ops(name: str) -> None:
    _, is_pending = pending()
    assert is_pending()
    WAITS[name]()
    assert not is_pending()


def test_facades() -> None:
    stream, event = torch.Stream(device="tpu"), torch.Event("tpu")
    assert type(stream) is TpuStream
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("tpu", 0)
    assert type(event) is TpuEvent
    assert isinstance(event, torch.Event)
    assert type(torch.Event()) is TpuEvent
    assert type(torch.Stream()) is TpuStream
    assert issubclass(TpuEvent, torch.Event)
    assert not isinstance(3, torch.Event)

    class Mine(torch.Event):
        pass

    assert isinstance(Mine("tpu"), Mine)


def test_events() -> None:
    start, end = (torch.Event("tpu", enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    torch.ones(64, 64).to("tpu").square()
    end.record(torch.Stream(device="tpu"))
    assert 0 <= start.elapsed_time(end) < 60_000
    assert end.query()
    end.wait()
    end.synchronize()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        torch.Event("tpu").elapsed_time(end)


def work(count: int) -> torch.Tensor:
    x = torch.ones(1000, 1000).to("tpu")
    for _ in range(count):
        x = x @ x / 1000
    return x


def test_timed_events_do_not_wait_when_they_are_recorded() -> None:
    work(20).sum().item()

    def measure() -> None:
        start, middle, end = (torch.Event("tpu", enable_timing=True) for _ in range(3))
        lazytpu.sync()
        begun = time.perf_counter()
        start.record()
        x = work(20)
        middle.record()
        assert not middle.query()
        lazytpu.sync()
        whole = time.perf_counter() - begun
        assert middle.query()
        end.record()
        assert 0.5 * whole <= 1e-3 * start.elapsed_time(middle) <= whole
        assert 0 <= middle.elapsed_time(end) < 1e3 * whole
        assert [cut.cause for cut in lazytpu.explain_cut(1)] == ["event recorded"]
        del x

    measured(measure)


def test_elapsed_time_waits_for_its_events() -> None:
    def measure() -> None:
        start, end = (torch.Event("tpu", enable_timing=True) for _ in range(2))
        lazytpu.sync()
        lazytpu.reset_metrics()
        start.record()
        x = work(20)
        end.record()
        milliseconds = start.elapsed_time(end)
        waits = lazytpu.waits()
        assert [wait.text for wait in waits] == ["start.elapsed_time(end)"]
        assert 0 < 1e3 * waits[0].seconds <= milliseconds + 1
        assert end.query() and -end.elapsed_time(start) == milliseconds
        del x

    measured(measure)


def test_event_after_a_failed_run_is_reached() -> None:
    start, end = (torch.Event("tpu", enable_timing=True) for _ in range(2))
    start.record()
    picked = torch.ones(3).to("tpu")[torch.tensor([7]).to("tpu")]
    end.record()
    assert start.elapsed_time(end) >= 0
    with pytest.raises(IndexError):
        picked.tolist()


def test_stream_order_is_a_no_op() -> None:
    module = torch.get_device_module("tpu")
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        x = torch.ones(2).to("tpu") * 3
    side.wait_event(side.record_event())
    module.set_stream(side)
    with side:
        assert (x + 1).tolist() == [4, 4]
    assert module.default_stream() == module.current_stream()


def test_record_stream_accepts_tensors() -> None:
    stream = torch.Stream("tpu")
    with stream:
        x = torch.ones(3, device="tpu") * 2
    x.record_stream(stream)
    with torch.tpu.stream(stream), torch.tpu.device("tpu:0"):
        y = x + 1
    torch.accelerator.current_stream().wait_stream(stream)
    stream.synchronize()
    assert y.tolist() == [3.0] * 3
