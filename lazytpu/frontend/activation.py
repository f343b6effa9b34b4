"""Activation: the engine starts at the first use of the device, and this module holds it for the frontend.

`import torch` registers the device and stores the start function here. So any module of the frontend can start the
engine without importing it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lazytpu import full_collections
from lazytpu.collection import loading
from lazytpu.ports import DevicePort, EnginePort

_start: Callable[[], None] | None = None
_activated = False
_lock = threading.RLock()
_engine: EnginePort | None = None


def at_first_use(start: Callable[[], None]) -> None:
    """Store `start`, to be called at the first use of the device. It must call `install`."""
    global _start
    _start = start


def activate() -> None:
    """Start the engine and register all kernels, once. Raises the start's errors; the next use tries again."""
    global _activated
    with _lock:
        if _activated:
            return
        assert _start is not None, 'lazytpu has not registered the device "tpu"'
        _activated = True  # already now, since the start creates tensors
        try:
            with loading():
                _start()
        except BaseException:
            _activated = False
            raise
        if _engine is not None:
            full_collections.pace(_engine.device.live_bytes)


def install(engine: EnginePort) -> None:
    """Set the engine that the frontend uses."""
    global _engine
    _engine = engine


def engine() -> EnginePort:
    """Return the engine, which must have been started."""
    assert _engine is not None, "lazytpu is not activated"
    return _engine


def device() -> DevicePort:
    """Return the device; starts the engine if needed."""
    if _engine is None:
        activate()
    return engine().device


def started_device() -> DevicePort | None:
    """Return the device, or None before the engine starts."""
    return None if _engine is None else _engine.device
