"""The device as XLA describes it, and its memory in use."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import torch

from lazytpu.aten.dtypes import NAMES
from lazytpu.engine.launching.utilization import Utilization
from lazytpu.engine.memory.alive import MemoryReport
from lazytpu.passes.generations import generation_of
from lazytpu.ports import DevicePort, DeviceProperties
from lazytpu.runtime.buffers.buffer import MEMORY
from lazytpu.runtime.xla import client, tracing
from lazytpu.timeline import Traced


def capacity() -> tuple[int, int]:
    """Return (free, total) bytes of the device's memory, by XLA's count if it has one, else of the host's memory."""
    stats = client.devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit")
    if limit:
        return max(int(limit) - int(stats.get("bytes_in_use", 0)), 0), int(limit)
    total = host_total()
    return min(host_available(), total), total


def host_total() -> int:
    """Return the bytes of the host's memory, or the limit of a container or `ulimit -v`."""
    group = _number(_GROUP / "memory.max")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    bounds = [group, address_space if address_space != resource.RLIM_INFINITY else None]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(b for b in bounds if b is not None)])


def host_available() -> int:
    """Return the bytes that the host, or this process's container, can provide without swapping; the free pages if the
    kernel does not say."""
    free = _listed("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    group, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    return free if group is None or used is None else min(free, max(group - used, 0))


_GROUP = Path("/sys/fs/cgroup")  # cgroup v2; a container sees its own group


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is none ("max" means no limit)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _listed(name: str) -> int | None:
    """Return the bytes of an entry in /proc/meminfo, or None."""
    listed = Path("/proc/meminfo")
    match = re.search(rf"^{name}:\s+(\d+) kB", listed.read_text(), re.MULTILINE) if listed.exists() else None
    return 1024 * int(match[1]) if match else None


def limit() -> int:
    """Return the bytes that no program can exceed: the device's memory, and for a host also its swap space."""
    return capacity()[1] + (_listed("SwapTotal") or 0 if client.platform() == "cpu" else 0)


def available() -> float:
    """Return the bytes that a program on the host can allocate now; infinite if the device has its own memory."""
    return host_available() if client.platform() == "cpu" else inf


def _name() -> str:
    """Return the name of the device by its generation, from which libraries take a chip's peak. On a CPU it is that of
    the chip that is simulated."""
    chip, platform = client.chip(), client.platform()
    generation = generation_of(chip)
    name = chip if generation is None else f"TPU {generation.replace('tpu', 'v')}"
    if platform == "cpu":
        return f"{name} (simulated on a CPU)"
    return name if platform == "tpu" else str(client.devices()[0].device_kind)


class Device(DevicePort):
    """The device of this process. `report` implements `lazytpu.memory()`, and `device_ms` returns the milliseconds that
    programs ran."""

    def __init__(self, report: Callable[[], MemoryReport], device_ms: Callable[[], float]):
        self.report = report
        self.utilization = Utilization(device_ms)
        self.fraction = 1.0

    def properties(self) -> DeviceProperties:
        return DeviceProperties(_name(), client.platform(), capacity()[1])

    def platform(self) -> str:
        return client.platform()

    def free_bytes(self) -> int:
        return capacity()[0]

    def dtypes(self) -> set[torch.dtype]:
        # The TPU's compiler (libtpu 0.0.42.1) fails on copies and casts of complex128.
        return set(NAMES) - ({torch.complex128} if client.platform() == "tpu" else set())

    def busy_percent(self) -> int:
        return self.utilization.percent()

    def memory_fraction(self) -> float:
        return self.fraction

    def allow_memory(self, fraction: float) -> None:
        self.fraction = fraction
        MEMORY.limit = limit() if fraction == 1 else int(fraction * capacity()[1])

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

    def begin_trace(self) -> Any:
        return tracing.begin_trace()

    def end_trace(self, session: Any) -> Traced | None:
        return tracing.end_trace(session)
