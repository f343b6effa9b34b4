"""Streams and events: the device runs one queue in order, so waiting for anything waits for everything before it.

A wait cuts the pending ops (they would otherwise never run) and waits for the device. Ordering one stream after another
is a no-op.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.device.facades import facade
from lazytpu.frontend.lines import call_site
from lazytpu.frontend.torch_private import NativeEvent, NativeStream
from lazytpu.frontend.waits import Waiting
from lazytpu.trace.cuts import EVENT, SYNC


def synchronize(*, asked: bool = True) -> None:
    """Run the pending ops of all threads, and wait for the device. Unless `asked`, `set_sync_debug_mode` reports it.

    Raises IndexError when an index was out of range on the device, and RuntimeError when a program failed there.
    """
    from lazytpu.frontend.tensors import recorders

    if activation.started_device() is not None:
        place = call_site()
        with Waiting(asked=asked):
            for recorder in recorders():
                recorder.cut(SYNC, place)
            activation.engine().wait()


class TpuEvent(NativeEvent):
    """A point in the device's queue; `torch.Event("tpu")` returns it.

    With `enable_timing`, `record` runs the pending ops of its thread, without waiting, and a thread measures when the
    device has done all work launched before. So the time between two events is that of the device's work between them.
    """

    _timing: bool
    _point: Any
    _recorded: bool

    def __new__(cls, device: Any = None, *, enable_timing: bool = False, **kwargs: Any) -> TpuEvent:
        event = super().__new__(cls, "tpu", enable_timing=enable_timing, **kwargs)
        event._timing, event._point, event._recorded = enable_timing, None, False
        return event

    def record(self, stream: torch.Stream | None = None) -> None:
        if self._timing:
            from lazytpu.frontend.tensors import recorder

            activation.activate()
            recorder().cut(EVENT, call_site())
            self._point = activation.engine().point()
        # Otherwise no cut: FSDP records a dozen events in each step, and waits for none of them on the host.
        self._recorded = True

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Do nothing: later work in the queue runs later."""

    def query(self) -> bool:
        """Return whether the device has come to the event; without timing, return True after waiting."""
        if self._point is not None:
            return self._point.is_reached
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self._recorded:
            synchronize()

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Return the milliseconds from this event to `end_event`, after waiting for both.

        Raises RuntimeError when one of them has no timing, or was not recorded.
        """
        if not (self._timing and isinstance(end_event, TpuEvent) and end_event._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._point is None or end_event._point is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        time_of = activation.engine().time_of
        with Waiting(asked=True):
            return 1e3 * (time_of(end_event._point) - time_of(self._point))


class TpuStream(NativeStream):
    """The device's queue; `torch.Stream(device="tpu")` returns it. All streams are the same."""

    def __new__(cls, *args: Any, **kwargs: Any) -> TpuStream:
        return super().__new__(cls, device="tpu:0")

    def synchronize(self) -> None:
        synchronize(asked=False)

    def query(self) -> bool:
        """Return True, after waiting: XLA's queue can be waited for, but not polled."""
        synchronize()
        return True

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        event = TpuEvent() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Do nothing: the queue runs in order."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Do nothing: the queue runs in order."""


@cache
def current() -> TpuStream:
    """Return the device's queue."""
    return TpuStream()


def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """The kernel of aten::record_stream. Do nothing: memory is reused only after all work launched before."""


KERNELS: dict[str, Any] = {"record_stream": record_stream}


def _is_tpu(device: Any) -> bool:
    """Return whether the device argument of a stream or event means tpu. None or an index means the accelerator."""
    return device is None or isinstance(device, int) or torch.device(device).type == "tpu"


def _construct_event(device: Any = None, **kwargs: Any) -> torch.Event:
    return TpuEvent(device, **kwargs) if _is_tpu(device) else NativeEvent(device, **kwargs)


def _construct_stream(*args: Any, **kwargs: Any) -> torch.Stream:
    if "stream_id" in kwargs or len(args) > 1:
        stream = NativeStream(*args, **kwargs)
        return TpuStream() if stream.device.type == "tpu" else stream
    device = args[0] if args else kwargs.get("device")
    return TpuStream() if _is_tpu(device) else NativeStream(*args, **kwargs)


def install() -> None:
    """Let `torch.Stream` and `torch.Event` create the device's classes."""
    torch.Stream = facade(NativeStream, _construct_stream)  # pyright: ignore[reportAttributeAccessIssue]
    torch.Event = facade(NativeEvent, _construct_event)  # pyright: ignore[reportAttributeAccessIssue]
