"""The arrays of values in memory: padded for programs for many sizes, and exact for others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lazytpu.engine.launching.uploads import UPLOADS
from lazytpu.ports import Ranges
from lazytpu.runtime.buffers import padded, repadding
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, KnownBuffer, Origin
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.buffers.repadding import Memory
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array

UPLOAD = "upload"
"""The value of `Origin.op` for data uploaded from the host."""


def fitted(buffer: Buffer, memory: Memory) -> Array:
    """Return an array of a value with these sizes in memory: the existing one or a copy. Elements beyond the true sizes
    are unspecified.

    Raise ValueError for a value that is larger, CompileError, RunError, and OutOfMemory if there is no room.
    """
    if isinstance(buffer, PaddedBuffer):
        if buffer.memory == memory and buffer.kept is not None:
            return buffer.kept
        shape = buffer.shape
        source, array = (shape, buffer.array) if buffer.kept is None else (buffer.memory, buffer.kept)
    else:
        array: Array = buffer.array
        source = shape = array.shape
        if shape == memory:
            return array
    if buffer.origin is not None and buffer.origin.op == UPLOAD:  # pad on the host: no program for each size is needed
        UPLOADS.learn(array.dtype, shape, memory)
        host = repadding.padded(buffer.fetch(), memory)
        MEMORY.note_execution(0, host.nbytes, 0)
        array = client.to_device(host)
    else:
        array = repadding.moved(array, source, memory, shape)
    return repadding.poisoned(array, memory, shape) if padded.POISON else array


def uploaded(array: np.ndarray[Any, Any], ranges: Ranges, line: Any) -> Buffer:
    """Return a buffer of host data, padded if data of its kind varies in size. `ranges` are the dimensions marked as
    varying, in memory order. The host keeps a copy of data without dimensions, so that it is read without waiting.

    Raise OutOfMemory if there is no room.
    """
    if not array.ndim:
        return known(array, Origin(UPLOAD, line, None))
    memory = UPLOADS.memory(array.dtype, array.shape, ranges)
    held = array if memory is None or memory == array.shape else repadding.padded(array, memory)
    MEMORY.note_execution(0, held.nbytes, 0)
    origin = Origin(UPLOAD, line, None)
    if memory is None:
        return Buffer(client.to_device(held), held.nbytes, origin)
    buffer = PaddedBuffer(client.to_device(held), held.nbytes, memory, array.shape, origin, ranges=ranges)
    if not ranges:
        buffer.in_vain = partial(UPLOADS.leave, array.dtype, array.shape)
    return buffer


def known(array: np.ndarray[Any, Any], origin: Origin) -> KnownBuffer:
    """Return a buffer of host data, of which the host keeps a copy."""
    MEMORY.note_execution(0, array.nbytes, 0)
    return KnownBuffer(client.to_device(array), array.nbytes, origin, array.copy())


def marked(buffer: Buffer, ranges: Ranges) -> PaddedBuffer:
    """Return a buffer of the same value with dimensions marked as varying, by number in memory order. A buffer that is
    already padded is marked in place."""
    if isinstance(buffer, PaddedBuffer):
        buffer.ranges = {**buffer.ranges, **ranges}
        wanted = UPLOADS.memory(buffer.existing.dtype, buffer.shape, buffer.ranges)
        if wanted is None or not _is_larger(wanted, buffer.memory):
            return buffer
        array = fitted(buffer, wanted)
        return PaddedBuffer(array, array.nbytes, wanted, buffer.shape, buffer.origin, buffer.outcome, buffer.ranges)
    exact: Array = buffer.array
    shape = exact.shape
    memory = UPLOADS.memory(exact.dtype, shape, ranges) or shape
    array = fitted(buffer, memory)
    if array is not exact:
        return PaddedBuffer(array, array.nbytes, memory, shape, buffer.origin, buffer.outcome, ranges)
    shared = PaddedBuffer(client.alias(array), array.nbytes, memory, shape, buffer.origin, buffer.outcome, ranges)
    buffer.pins += 1  # two buffers share the memory, so it must not be donated
    shared.pins += 1
    return shared


def _is_larger(one: Memory, other: Memory) -> bool:
    """Return whether an array of plain sizes `one` has room for all elements of `other`, and more."""
    pairs = list(zip(one, other, strict=True))
    return one != other and all(isinstance(n, int) and isinstance(m, int) and n >= m for n, m in pairs)
