"""Warm-up: programs compiled before they are needed, or loaded from a library."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazytpu.engine.engine import Engine
from lazytpu.interrupts import interruptible
from lazytpu.options import options
from lazytpu.runtime.cache.library import Unpacked, unpack
from lazytpu.runtime.cache.programs import TRAFFIC
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.cache.translation import environment


@dataclass(frozen=True, slots=True)
class Warmed:
    """The effect of a warm-up call: the number of programs `compiled` by XLA and `loaded` from the disk cache, the
    `seconds` it took, and the `value` that the function returned."""

    compiled: int
    loaded: int
    seconds: float
    value: Any

    def __str__(self) -> str:
        return f"{self.compiled:,} programs compiled and {self.loaded:,} loaded in {self.seconds:.1f} s"


@interruptible
def run(engine: Engine, sync: Callable[[], None], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Warmed:
    """Call a function, and return after everything it recorded is compiled and has run. Raise its errors."""
    sync()  # run everything recorded before the function
    start, compiles, loaded = time.perf_counter(), engine.metrics.compiles, TRAFFIC.hits
    with options(background_compile=0):  # compile whole programs rather than run op by op
        value = function(*args, **kwargs)
        sync()
    seconds = time.perf_counter() - start
    return Warmed(engine.metrics.compiles - compiles, TRAFFIC.hits - loaded, seconds, value)


def load(path: Path) -> Unpacked:
    """Unpack a library into the cache.

    Raise OSError, and BadLibrary for a damaged file. Raise ValueError if there is no disk cache, or if no program in
    the library is for this environment; the message names the difference.
    """
    into = store()
    if into.root is None:
        raise ValueError(
            f"{path} is unpacked into the cache on disk, and there is none: set LAZYTPU_CACHE_DIR, or "
            "lazytpu.options.cache_dir, to a folder"
        )
    unpacked = unpack(into, path, environment())
    if unpacked.refused and not unpacked.stored + unpacked.present:
        raise ValueError(f"nothing in {path} can be used here: {unpacked}")
    return unpacked
