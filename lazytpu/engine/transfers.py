"""Data of the host on its way to the device and back, and waiting for the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lazytpu.aten.host_arrays import copied, number, to_numpy
from lazytpu.engine.errors.lineage import DeviceError
from lazytpu.engine.launching.inflight import Inflight
from lazytpu.engine.launching.out_of_memory import OutOfMemoryError
from lazytpu.engine.launching.padding import marked, uploaded
from lazytpu.engine.memory.alive import MemoryReport
from lazytpu.ports import Ranges
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.runtime.xla import client
from lazytpu.trace.value import Layout, again


class Transfers:
    """Moves data for an engine, and raises what failed in its runs. `memory` reports what is alive, for errors."""

    def __init__(self, inflight: Inflight, memory: Callable[[], MemoryReport]):
        self.inflight = inflight
        self.memory = memory

    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None, ranges: Ranges | None = None) -> Buffer:
        """A device buffer with a snapshot of the elements of `flat` (1-D, in memory order); `line` asked for it.
        Dimensions of the value that are said to vary have `ranges`."""
        array = to_numpy(flat).reshape(layout.memory_shape)
        try:
            return uploaded(array, in_memory(ranges, layout) if ranges else {}, line)
        except OutOfMemory as error:
            raise self._exhausted(error, "upload") from None

    def mark(self, buffer: Buffer, layout: Layout, ranges: Ranges) -> Buffer:
        """A buffer of a value's elements that says which dimensions of the value will vary."""
        return marked(buffer, in_memory(ranges, layout))

    def download(self, buffer: Buffer, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D CPU tensor with a buffer's elements, in memory of torch's own, so that it can be resized. Raises what
        failed in the runs that they depend on, once. Only a constant is read without waiting."""
        return self._read(buffer, lambda array: copied(array, dtype))

    def number(self, buffer: Buffer, dtype: torch.dtype, index: int) -> Any:
        """One of these elements, as a Python number, in a third of the time."""
        return self._read(buffer, lambda array: number(array, dtype, index))

    def _read(self, buffer: Buffer, take: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
        if buffer.host is not None:
            return take(buffer.host)
        outcome = buffer.outcome  # first: a deferred buffer waits until its run is there
        self.inflight.settle()
        if outcome is not None and outcome.errors:
            self._raise_first(outcome.errors)
        if buffer.error is not None:
            raise again(buffer.error)
        try:
            with self.inflight.metrics.waiting():
                return take(buffer.fetch())
        except OutOfMemory as error:
            raise self._exhausted(error, "read") from None

    def share(self, buffer: Buffer) -> Any:
        """A jax array of the same memory, which no run takes while the array lives. Waits for what makes the buffer,
        and raises what failed in the runs that it depends on, once."""
        outcome = buffer.outcome
        self.inflight.settle()
        if outcome is not None and outcome.errors:
            self._raise_first(outcome.errors)
        if buffer.error is not None:
            raise again(buffer.error)
        array = client.alias(buffer.array)
        buffer.pins += 1
        weakref.finalize(array, _unpin, buffer)
        return array

    def adopt(self, array: Any, line: Any = None) -> Buffer:
        """A buffer of a jax array's memory. No run takes it: whoever made the array may still have it."""
        buffer = Buffer(client.alias(array), array.nbytes, Origin("from_jax", line, None))
        buffer.pins = 1
        return buffer

    def launched(self) -> int:
        """How many runs there were."""
        return self.inflight.launched

    def wait(self, since: int = 0) -> None:
        """Wait until everything launched is done. Raises what failed in runs after the first `since`, unless it was
        raised before."""
        self.inflight.settle()
        if self.inflight.errors:
            self._raise_first([error for error in self.inflight.errors if error.run > since])

    def idle(self) -> bool:
        """Whether everything launched is done; what failed is still to be raised."""
        return self.inflight.idle()

    def _raise_first(self, errors: Sequence[DeviceError]) -> None:
        try:
            self.inflight.raise_first(errors)
        except OutOfMemory as error:
            raise self._exhausted(error, "read") from None

    def _exhausted(self, error: OutOfMemory, stage: str) -> OutOfMemoryError:
        """An error of memory while data is moved, in full."""
        MEMORY.exhausted += 1
        return OutOfMemoryError(error, stage, self.memory())


def in_memory(ranges: Ranges, layout: Layout) -> Ranges:
    """The same dimensions by their numbers in memory order."""
    order = layout.memory_order
    return {order.index(dim): between for dim, between in ranges.items()}


def _unpin(buffer: Buffer) -> None:
    buffer.pins -= 1
