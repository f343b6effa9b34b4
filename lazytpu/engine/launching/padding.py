"""The arrays of arguments for programs that are made for many sizes, and for those made for one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lazytpu.engine.sizes.uploads import UPLOADS
from lazytpu.ports import Ranges
from lazytpu.runtime.buffers import padded, repadding
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.buffers.repadding import Memory
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array

UPLOAD = "upload"
"What `Origin.op` is of data of the host."


def fitted(buffer: Buffer, memory: Memory) -> Array:
    """The array of a value with these sizes in memory: the one that is there, or a copy. What it holds beyond the true
    sizes is nobody's.

    Raises ValueError for a value that is larger, CompileError, RunError, and OutOfMemory when there is no room.
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
    if buffer.origin is not None and buffer.origin.op == UPLOAD:  # it is there: no program for each size is needed
        UPLOADS.learn(array.dtype, shape, memory)
        host = repadding.padded(buffer.fetch(), memory)
        MEMORY.note_execution(0, host.nbytes, 0)
        array = client.to_device(host)
    else:
        array = repadding.moved(array, source, memory, shape)
    return repadding.poisoned(array, memory, shape) if padded.POISON else array


def uploaded(array: np.ndarray[Any, Any], ranges: Ranges, line: Any) -> Buffer:
    """A buffer of data of the host, padded if that comes in many sizes. `ranges` are dimensions that are said to vary,
    by number in memory order.

    Raises OutOfMemory.
    """
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


def marked(buffer: Buffer, ranges: Ranges) -> PaddedBuffer:
    """A buffer of the same value that says which dimensions will vary, by number in memory order, as `buffer` itself
    does from then on if it is padded."""
    if isinstance(buffer, PaddedBuffer):
        buffer.ranges = {**buffer.ranges, **ranges}
        wanted = UPLOADS.memory(buffer.existing.dtype, buffer.shape, buffer.ranges)
        if wanted is None or not _is_larger(wanted, buffer.memory):
            return buffer
        array = fitted(buffer, wanted)
        return PaddedBuffer(array, array.nbytes, wanted, buffer.shape, buffer.origin, buffer.outcome, buffer.ranges)
    whole: Array = buffer.array
    shape = whole.shape
    memory = UPLOADS.memory(whole.dtype, shape, ranges) or shape
    array = fitted(buffer, memory)
    if array is not whole:
        return PaddedBuffer(array, array.nbytes, memory, shape, buffer.origin, buffer.outcome, ranges)
    shared = PaddedBuffer(client.alias(array), array.nbytes, memory, shape, buffer.origin, buffer.outcome, ranges)
    buffer.pins += 1  # two buffers have its memory: no run may take that
    shared.pins += 1
    return shared


def _is_larger(one: Memory, other: Memory) -> bool:
    """Whether an array of plain sizes has room for all that another one holds, and more."""
    pairs = list(zip(one, other, strict=True))
    return one != other and all(isinstance(n, int) and isinstance(m, int) and n >= m for n, m in pairs)
