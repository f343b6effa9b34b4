"""Values in a custom layout chosen by the program that updates them: parameters and their optimizer states.

XLA does not check the layout of an argument. An array in an unexpected layout is read as if it had the expected one.
Therefore `array` of such a buffer is always in the default layout, copied on the device. Only a program that was
compiled for the custom layout takes the `kept` array, through `arrays_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.buffers.kept import KeptBuffer
from lazytpu.runtime.cache import programs
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import LAYOUT, type_text


class CustomLayoutBuffer(KeptBuffer):
    """A value whose `kept` array has the layout `layout`. Its `array` is a copy in the default layout."""

    __slots__ = ("layout",)

    def __init__(self, custom: Array, nbytes: int, origin: Origin | None, layout: str, outcome: Any = None) -> None:
        super().__init__(custom, nbytes, origin, outcome)
        self.layout = layout

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An array in the default layout; None once the value was released."""
        if self.plain is None and self.kept is not None:
            converted = relayout(self.kept, self.layout, None)
            self.count(self.plain_nbytes)
            self.plain = converted
        return self.plain

    @property
    def plain_nbytes(self) -> int:
        return self.nbytes // 2 if self.copied else self.nbytes

    def fetch(self) -> np.ndarray[Any, Any]:
        return client.to_host(self.existing, copy=False)


def arrays_of(buffers: Sequence[Buffer], layouts: Sequence[str | None]) -> list[Array]:
    """Return the arrays of some arguments, each in the layout that the program expects; None is the default layout."""
    return [b.array if layout is None else _in_layout(b, layout) for b, layout in zip(buffers, layouts, strict=True)]


def buffer_of(layout: str | None, array: Array, nbytes: int, origin: Origin | None, outcome: Any = None) -> Buffer:
    """Return a buffer for a result in `layout` (None for the default). `outcome` is the state of its run."""
    if layout is None:
        return Buffer(array, nbytes, origin, outcome)
    return CustomLayoutBuffer(array, nbytes, origin, layout, outcome)


def _in_layout(buffer: Buffer, layout: str) -> Array:
    if not isinstance(buffer, CustomLayoutBuffer) or buffer.kept is None:
        return relayout(buffer.array, None, layout)
    return buffer.kept if buffer.layout == layout else relayout(buffer.kept, buffer.layout, layout)


def relayout(array: Array, source: str | None, target: str | None) -> Array:
    """Return a copy, computed on the device, of an array in the layout `source`. The copy has the layout `target`. None
    is the default layout.

    Raises CompileError, RunError, and OutOfMemory when the copy does not fit.
    """
    dtype, shape = array.dtype, array.shape
    program = _copier(dtype, shape, source, target)
    MEMORY.note_execution(0, dtype.itemsize * prod(shape), 0)
    return program.run([array])[0]


@lru_cache(maxsize=1024)
def _copier(dtype: np.dtype[Any], shape: tuple[int, ...], source: str | None, target: str | None) -> Program:
    kind = type_text((dtype, shape))
    before, after = (f'{{{LAYOUT} = "{layout or "default"}"}}' for layout in (source, target))
    with client.mlir_context():
        main = f"func.func public @main(%x: {kind} {before}) -> ({kind} {after}) {{ return %x : {kind} }}"
        module = ir.Module.parse(f"module @relayout {{ {main} }}")
    return programs.obtain(module, programs.program_key(module), name="relayout").program
