"""Activation: the engine starts at the first use of the device, and the frontend reaches it from here.

`import torch` registers the device and leaves here what starts the engine. So any module of the frontend may start it
without knowing how that is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lazytpu.collection import loading
from lazytpu.ports import DevicePort, EnginePort

_start: Callable[[], None] | None = None
_activated = False
_lock = threading.RLock()
_engine: EnginePort | None = None


def at_first_use(start: Callable[[], None]) -> None:
    """Let `start` be called at the first use of the device. It calls `install`."""
    global _start
    _start = start


def activate() -> None:
    """Start the engine and register all kernels, once. Raises what the start raises; the next use tries again."""
    global _activated
    with _lock:
        if _activated:
            return
        assert _start is not None, 'lazytpu has not registered the device "tpu"'
        _activated = True  # the start makes tensors
        try:
            with loading():
                _start()
        except BaseException:
            _activated = False
            raise


def install(engine: EnginePort) -> None:
    """Make `engine` the one that the frontend uses."""
    global _engine
    _engine = engine


def engine() -> EnginePort:
    """The engine, which has been started."""
    assert _engine is not None, "lazytpu is not activated"
    return _engine


def device() -> DevicePort:
    """The device; starts the engine if that has not happened yet."""
    if _engine is None:
        activate()
    return engine().device


def started_device() -> DevicePort | None:
    """The device, or None before the engine starts."""
    return None if _engine is None else _engine.device
