"""The device as XLA describes it, and how much of its memory is in use."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from lazytpu.aten.dtypes import NAMES
from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY


class Device:
    """Implements `lazytpu.frontend.device.device_port.Device`; `make_properties`: the frontend's class of them."""

    def __init__(self, make_properties: Callable[..., Any]):
        self.make_properties = make_properties

    def properties(self) -> Any:
        described = client.devices()[0]
        stats = described.memory_stats() or {}
        total = stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.make_properties(str(described.device_kind), client.platform(), int(total))

    def dtypes(self) -> set[torch.dtype]:
        return set(NAMES)

    def live_bytes(self) -> int:
        return MEMORY.live

    def peak_bytes(self) -> int:
        return MEMORY.peak

    def reset_peak(self) -> None:
        MEMORY.reset_peak()
