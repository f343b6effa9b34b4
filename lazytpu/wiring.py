"""Puts the rooms together: the engine is made and given to the frontend. The only module besides the package's own
`__init__` that may import every room."""

from __future__ import annotations

from lazytpu.engine.device import XlaDevice
from lazytpu.engine.engine import Engine
from lazytpu.frontend import ports
from lazytpu.frontend.device import device_port
from lazytpu.frontend.recording.lines import user_line
from lazytpu.frontend.recording.names import model_names, slot_names
from lazytpu.frontend.storage.owners import owners
from lazytpu.options import options

ENGINE: Engine | None = None


def start() -> Engine:
    """Make the engine, once. Raises ValueError for an environment variable of lazytpu that could not be read."""
    global ENGINE
    if ENGINE is None:
        options.check()
        ENGINE = engine = Engine(slot_names, model_names, ports.OpFacts, owners, user_line)
        ports.install(ENGINE)
        device_port.install(XlaDevice(device_port.Properties, ENGINE.memory, lambda: engine.metrics.device_ms))
    return ENGINE
