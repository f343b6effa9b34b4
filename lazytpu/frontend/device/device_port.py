"""What `torch.tpu` tells about the device, given to the frontend when the engine starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Properties:
    """The device as XLA describes it: `name` ("TPU v5 lite"), `platform` ("tpu", "gpu" or "cpu"), `total_memory` in
    bytes (of the host, where that is the device)."""

    name: str
    platform: str
    total_memory: int
    multi_processor_count: int = 1


class Device(Protocol):
    """The part of the engine that knows the device itself."""

    def properties(self) -> Properties:
        """The device as XLA describes it."""
        ...

    def platform(self) -> str:
        """Where programs run: "tpu", "gpu" or "cpu"."""
        ...

    def dtypes(self) -> set[torch.dtype]:
        """The dtypes that tensors of the device may have."""
        ...

    def busy_percent(self) -> int:
        """Percent of the time since it was asked before in which programs ran."""
        ...

    def memory_fraction(self) -> float:
        """The part of the device's memory that this process may take."""
        ...

    def allow_memory(self, fraction: float) -> None:
        """Let this process take that part of the device's memory, and no more."""
        ...

    def free_bytes(self) -> int:
        """Bytes of the device's memory that nobody uses now."""
        ...

    def live_bytes(self) -> int:
        """Bytes of device memory that values hold now."""
        ...

    def peak_bytes(self) -> int:
        """The most bytes held since the start or `reset_peak`, temporaries of programs included."""
        ...

    def reset_peak(self) -> None:
        """Start `peak_bytes` anew from what is held now."""
        ...

    def times_exhausted(self) -> int:
        """How often the device's memory was too small since the start or `reset_exhausted`."""
        ...

    def reset_exhausted(self) -> None:
        """Start `times_exhausted` anew from 0."""
        ...

    def summary(self) -> str:
        """What is alive, as a table for people."""
        ...


_device: Device | None = None


def install(device: Device) -> None:
    """Make `device` the one that `torch.tpu` describes."""
    global _device
    _device = device


def installed() -> Device | None:
    """The device, or None before the first tensor."""
    return _device


def device() -> Device:
    """The device; starts the engine if that has not happened yet."""
    if _device is None:
        from lazytpu.frontend.register import activate

        activate()
    assert _device is not None, "the engine has not described its device"
    return _device
