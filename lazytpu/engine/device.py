"""The device as XLA describes it, and how much of its memory is in use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lazytpu.aten.dtypes import NAMES
from lazytpu.engine.memory import MemoryReport
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
    return _listed("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _listed(name: str) -> int | None:
    """Bytes of an entry of Linux's list, None where there is none."""
    listed = Path("/proc/meminfo")
    found = re.search(rf"^{name}:\s+(\d+) kB", listed.read_text(), re.MULTILINE) if listed.exists() else None
    return 1024 * int(found[1]) if found else None


def limit() -> int:
    """Bytes that no program can exceed: the device's memory, of a host with its swap space."""
    return capacity()[1] + (_listed("SwapTotal") or 0 if client.platform() == "cpu" else 0)


class Device:
    """Implements `lazytpu.frontend.device.device_port.Device`; `make_properties`: the frontend's class of them,
    `report` what `lazytpu.memory()` calls."""

    def __init__(self, make_properties: Callable[..., Any], report: Callable[[], MemoryReport]):
        self.make_properties = make_properties
        self.report = report

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

    def times_exhausted(self) -> int:
        return MEMORY.exhausted

    def reset_exhausted(self) -> None:
        MEMORY.exhausted = 0

    def summary(self) -> str:
        return str(self.report())
