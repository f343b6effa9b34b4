"""Values that lie in memory as the program that updates them wants: parameters and their states, from step to step.

XLA does not look how an array lies: one in another layout than a program expects is read as if it had that layout. So
whoever asks such a buffer for its `array` gets one that lies by default, copied on the device; only a program that
wants the very layout takes the other (`arguments`). Both stay valid until the value is overwritten.
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
from lazytpu.runtime.client import Array, ir
from lazytpu.runtime.layouts import Layouts
from lazytpu.runtime.program import Program
from lazytpu.runtime.signature import LAYOUT, type_text


class LaidOut(Buffer):
    """A value whose array `laid` lies as `layout` says. Its `array` is a copy that lies by default, made when somebody
    asks; `nbytes` counts both. Without `laid` this is a buffer like any other, or was released."""

    __slots__ = ("_plain", "laid", "layout")

    def __init__(self, laid: Array, nbytes: int, origin: Origin | None, layout: str, outcome: Any = None) -> None:
        self._plain: Any = None
        self.laid = laid
        self.layout = layout
        self.nbytes = 0
        self.origin = origin
        self.outcome = outcome
        self.pins = 0
        self.error = None
        self._count(nbytes)

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An array that lies by default; None once the value was released."""
        if self._plain is None and self.laid is not None:
            self._plain = relaid(self.laid, self.layout, None)
            self._count(self.nbytes)
        return self._plain

    @property
    def held(self) -> Any:
        """An array of this value that there is, however it lies; None once the value was released."""
        return self._plain if self.laid is None else self.laid

    @property
    def copied(self) -> bool:
        """Whether there are two arrays of this value."""
        return self.laid is not None and self._plain is not None

    def fetch(self) -> np.ndarray[Any, Any]:
        return client.to_host(self.held, copy=True)

    def gone(self) -> bool:
        return self.held is None

    def taken(self) -> bool:
        """As any buffer's; of two arrays, the one that the run took is let go, and the other is the value."""
        if self.copied and client.is_deleted(self.laid):
            self._drop_copy()
            self.laid = None
        return self.held is not None and client.is_deleted(self.held)

    def release(self) -> None:
        self._count(-self.nbytes)
        self.laid = self._plain = None

    def _drop_copy(self) -> None:
        if self.copied:
            self._count(-(self.nbytes // 2))

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        MEMORY.live = live = MEMORY.live + nbytes
        if live > MEMORY.peak:
            MEMORY.peak = live


def arguments(layouts: Layouts, first: int, buffers: Sequence[Buffer]) -> list[Array]:
    """The arrays of `buffers`, which are the arguments from position `first` on, as the program wants them."""
    wanted = layouts.arguments[first:]
    return [b.array if layout is None else _laid(b, layout) for b, layout in zip(buffers, wanted, strict=False)]


def result(
    layouts: Layouts | None, index: int, array: Array, nbytes: int, origin: Origin | None, outcome: Any = None
) -> Buffer:
    """The buffer of a result of a program with these layouts, whose run has the `outcome`."""
    layout = None if layouts is None else layouts.results[index]
    if layout is None:
        return Buffer(array, nbytes, origin, outcome)
    return LaidOut(array, nbytes, origin, layout, outcome)


def _laid(buffer: Buffer, layout: str) -> Array:
    if not isinstance(buffer, LaidOut) or buffer.laid is None:
        return relaid(buffer.array, None, layout)
    return buffer.laid if buffer.layout == layout else relaid(buffer.laid, buffer.layout, layout)


def relaid(array: Array, source: str | None, target: str | None) -> Array:
    """A copy, made on the device, of an array that lies as `source` says, and the copy as `target`; None is the
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
    given, made = (f'{{{LAYOUT} = "{layout or "default"}"}}' for layout in (source, target))
    with client.mlir_context():
        main = f"func.func public @main(%x: {kind} {given}) -> ({kind} {made}) {{ return %x : {kind} }}"
        module = ir.Module.parse(f"module @relayout {{ {main} }}")
    return programs.obtain(module, programs.program_key(module), name="relayout").program
