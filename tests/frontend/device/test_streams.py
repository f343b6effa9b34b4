"""Streams and events: one queue; a wait cuts and waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.frontend.device.streams import TpuEvent, TpuStream


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
