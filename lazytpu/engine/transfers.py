"""Transfers of data between host and device, and waiting for the device."""

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
    """Moves data for an engine, and raises errors of its runs. `memory` reports live memory for errors."""

    def __init__(self, inflight: Inflight, memory: Callable[[], MemoryReport]):
        self.inflight = inflight
        self.memory = memory

    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None, ranges: Ranges | None = None) -> Buffer:
        """Return a device buffer with a snapshot of `flat` (1-D, in memory order). `line` is the source line of the
        upload.

        `ranges` are the dimensions marked as varying.
        """
        array = to_numpy(flat).reshape(layout.memory_shape)
        try:
            return uploaded(array, in_memory(ranges, layout) if ranges else {}, line)
        except OutOfMemory as error:
            raise self._exhausted(error, "upload") from None

    def mark(self, buffer: Buffer, layout: Layout, ranges: Ranges) -> Buffer:
        """Return a buffer of the same elements with dimensions marked as varying."""
        return marked(buffer, in_memory(ranges, layout))

    def download(self, buffer: Buffer, dtype: torch.dtype) -> torch.Tensor:
        """Return a 1-D CPU tensor with a buffer's elements, in memory owned by torch, so that it can be resized.

        Raise, once, the error of a run that the elements depend on. Only a constant is read without waiting.
        """
        return self._read(buffer, lambda array: copied(array, dtype))

    def number(self, buffer: Buffer, dtype: torch.dtype, index: int) -> Any:
        """Return one element of a buffer as a Python number, in a third of the time of `download`."""
        return self._read(buffer, lambda array: number(array, dtype, index))

    def _read(self, buffer: Buffer, take: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
        """Wait for a buffer and return `take` of its array. Raise the error of a run that it depends on."""
        if buffer.host is not None:
            return take(buffer.host)
        with self.inflight.metrics.waiting():
            self._wait_for(buffer)
            try:
                return take(buffer.fetch())
            except OutOfMemory as error:
                raise self._exhausted(error, "read") from None

    def _wait_for(self, buffer: Buffer) -> None:
        """Wait for the runs that compute a buffer, and raise, once, the error of a run that it depends on."""
        outcome = buffer.outcome  # first: for a deferred buffer this waits for its launch
        self.inflight.settle()
        if outcome is not None and outcome.errors:
            self._raise_first(outcome.errors)
        if buffer.error is not None:
            raise again(buffer.error)

    def share(self, buffer: Buffer) -> Any:
        """Return a jax array of the same memory, which is not donated while the array lives.

        Wait for the runs that compute the buffer, and raise, once, the error of a run that it depends on.
        """
        with self.inflight.metrics.waiting():
            self._wait_for(buffer)
        array = client.alias(buffer.array)
        buffer.pins += 1
        weakref.finalize(array, _unpin, buffer)
        return array

    def adopt(self, array: Any, line: Any = None) -> Buffer:
        """Return a buffer of a jax array's memory. It is never donated, since the array may still be in
        use elsewhere."""
        buffer = Buffer(client.alias(array), array.nbytes, Origin("from_jax", line, None))
        buffer.pins = 1
        return buffer

    def launched(self) -> int:
        """Return the number of runs so far."""
        return self.inflight.launched

    def wait(self, since: int = 0) -> None:
        """Wait for all launched runs. Raise the first unreported error of runs after the first `since`."""
        self.inflight.settle()
        if self.inflight.errors:
            self._raise_first([error for error in self.inflight.errors if error.run > since])

    def idle(self) -> bool:
        """Return whether all launched runs are done. Their errors are still to be raised."""
        return self.inflight.idle()

    def _raise_first(self, errors: Sequence[DeviceError]) -> None:
        """Raise the first error that was not raised yet, with a memory report if memory was exhausted."""
        try:
            self.inflight.raise_first(errors)
        except OutOfMemory as error:
            raise self._exhausted(error, "read") from None

    def _exhausted(self, error: OutOfMemory, stage: str) -> OutOfMemoryError:
        """Return the out-of-memory error of a transfer, with a memory report."""
        MEMORY.exhausted += 1
        return OutOfMemoryError(error, stage, self.memory())


def in_memory(ranges: Ranges, layout: Layout) -> Ranges:
    """Return the same dimensions by their numbers in memory order."""
    order = layout.memory_order
    return {order.index(dim): between for dim, between in ranges.items()}


def _unpin(buffer: Buffer) -> None:
    buffer.pins -= 1
