"""Values with a custom layout, the one that the program updating them wants: parameters and their optimizer states.

XLA does not check how an array lies in memory: one in another layout than a program expects is read as if it had that
layout. So whoever asks such a buffer for its `array` gets one in the default layout, copied on the device; only a
program that wants the custom layout takes the other (`arrays_of`). Both are valid until the value is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.cache import programs
from lazytpu.runtime.client import Array
from lazytpu.runtime.mlir import ir
from lazytpu.runtime.program import Program
from lazytpu.runtime.signature import LAYOUT, type_text


class CustomLayoutBuffer(Buffer):
    """A value whose array `custom` has the layout `layout`. Its `array` is a copy in the default layout, made when
    somebody asks; `nbytes` counts both. Without `custom` this is a buffer like any other, or was released."""

    __slots__ = ("_default", "custom", "layout")

    def __init__(self, custom: Array, nbytes: int, origin: Origin | None, layout: str, outcome: Any = None) -> None:
        self._default: Any = None
        self.custom = custom
        self.layout = layout
        self.nbytes = 0
        self.origin = origin
        self.outcome = outcome
        self.pins = 0
        self.error = None
        self.count(nbytes)

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An array in the default layout; None once the value was released."""
        if self._default is None and self.custom is not None:
            self._default = relayout(self.custom, self.layout, None)
            self.count(self.nbytes)
        return self._default

    @property
    def existing(self) -> Any:
        """An array of this value that exists already, in either layout; None once the value was released."""
        return self._default if self.custom is None else self.custom

    @property
    def copied(self) -> bool:
        """Whether there are two arrays of this value."""
        return self.custom is not None and self._default is not None

    def fetch(self) -> np.ndarray[Any, Any]:
        return client.to_host(self.existing, copy=False)

    def gone(self) -> bool:
        return self.existing is None

    def taken(self) -> bool:
        """As any buffer's. Of two arrays, the one that the run took is dropped, and the other is the value."""
        if self.copied and client.is_deleted(self.custom):
            self.count(-(self.nbytes // 2))
            self.custom = None
        return self.existing is not None and client.is_deleted(self.existing)

    def release(self) -> None:
        self.count(-self.nbytes)
        self.custom = self._default = None


def arrays_of(buffers: Sequence[Buffer], layouts: Sequence[str | None]) -> list[Array]:
    """The arrays of some arguments, each in the layout that the program wants; None is the default."""
    return [b.array if layout is None else _in_layout(b, layout) for b, layout in zip(buffers, layouts, strict=True)]


def buffer_of(layout: str | None, array: Array, nbytes: int, origin: Origin | None, outcome: Any = None) -> Buffer:
    """The buffer of a result that has this layout, None for the default; its run has the `outcome`."""
    if layout is None:
        return Buffer(array, nbytes, origin, outcome)
    return CustomLayoutBuffer(array, nbytes, origin, layout, outcome)


def _in_layout(buffer: Buffer, layout: str) -> Array:
    if not isinstance(buffer, CustomLayoutBuffer) or buffer.custom is None:
        return relayout(buffer.array, None, layout)
    return buffer.custom if buffer.layout == layout else relayout(buffer.custom, buffer.layout, layout)


def relayout(array: Array, source: str | None, target: str | None) -> Array:
    """A copy, made on the device, of an array in the layout `source`; the copy has the layout `target`. None is the
    default.

    Raises CompileError, RunError, and OutOfMemory when there is no room.
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
