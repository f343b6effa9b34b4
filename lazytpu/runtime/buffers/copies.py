"""Copies of arrays, computed on the device by one small program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lazytpu.runtime.buffers.buffer import MEMORY, Buffer
from lazytpu.runtime.cache import programs
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import TensorSpec, type_text


def copies_of(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return copies of some buffers in the default layout, without waiting for the device.

    Raises CompileError, RunError, and OutOfMemory when the copies do not fit.
    """
    arrays: list[Array] = [buffer.array for buffer in buffers]
    program = _copier(tuple([(array.dtype, array.shape) for array in arrays]))
    sizes = [int(array.nbytes) for array in arrays]
    MEMORY.note_execution(0, sum(sizes), 0)
    copies = zip(buffers, program.run(arrays), sizes, strict=True)
    return [Buffer(array, size, buffer.origin, buffer.outcome) for buffer, array, size in copies]


@lru_cache(maxsize=64)
def _copier(specs: tuple[TensorSpec, ...]) -> Program:
    kinds = [type_text(spec) for spec in specs]
    arguments = ", ".join([f"%{i}: {kind}" for i, kind in enumerate(kinds)])
    results, types = ", ".join([f"%{i}" for i in range(len(kinds))]), ", ".join(kinds)
    with client.mlir_context():
        main = f"func.func public @main({arguments}) -> ({types}) {{ return {results} : {types} }}"
        module = ir.Module.parse(f"module @copies {{ {main} }}")
    return programs.obtain(module, programs.program_key(module), name="copies").program
