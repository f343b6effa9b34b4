"""The device as XLA describes it, and how much of its memory is in use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lazytpu.aten.dtypes import NAMES
from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY


def capacity() -> tuple[int, int]:
    """(free, total) bytes of the device's memory, by XLA's own count where it has one, else of the host's."""
    stats = client.devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit")
    if limit:
        return max(int(limit) - int(stats.get("bytes_in_use", 0)), 0), int(limit)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(host_available(), total), total


def host_available() -> int:
    """Bytes that the host can give without swapping; of its free pages alone where the kernel does not say."""
    listed = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", listed.read_text(), re.M) if listed.exists() else None
    return 1024 * int(found[1]) if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


class Device:
    """Implements `lazytpu.frontend.device.device_port.Device`; `make_properties`: the frontend's class of them."""

    def __init__(self, make_properties: Callable[..., Any]):
        self.make_properties = make_properties

    def properties(self) -> Any:
        return self.make_properties(str(client.devices()[0].device_kind), client.platform(), capacity()[1])

    def free_bytes(self) -> int:
        return capacity()[0]

    def dtypes(self) -> set[torch.dtype]:
        return set(NAMES)

    def live_bytes(self) -> int:
        return MEMORY.live

    def peak_bytes(self) -> int:
        return MEMORY.peak

    def reset_peak(self) -> None:
        MEMORY.reset_peak()
