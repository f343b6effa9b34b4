"""Device memory in use, under the names of `torch.cuda`.

It is counted where values allocate and release their memory, not measured, so the figures are the same on every
platform. XLA's pool is not visible, so reserved memory equals allocated memory.
"""

from __future__ import annotations

from typing import Any

from lazytpu.frontend import activation


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of device memory that values hold now; results of pending ops hold none."""
    started = activation.started_device()
    return 0 if started is None else started.live_bytes()


def max_memory_allocated(device: Any = None) -> int:
    """Return the maximum bytes held since the start or `reset_peak_memory_stats`, including temporaries of programs."""
    started = activation.started_device()
    return 0 if started is None else started.peak_bytes()


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart `max_memory_allocated` from the currently allocated bytes."""
    started = activation.started_device()
    if started is not None:
        started.reset_peak()


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Reset the count of out-of-memory errors, the only accumulating figure."""
    started = activation.started_device()
    if started is not None:
        started.reset_exhausted()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the figures under torch's names: `allocated_bytes.all.current`, `.peak`, the same for `reserved_bytes` and
    `active_bytes`, and `num_ooms`, the number of OutOfMemoryErrors."""
    now, peak = memory_allocated(device), max_memory_allocated(device)
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
    started = activation.started_device()
    ooms = {"num_ooms": 0 if started is None else started.times_exhausted(), "num_alloc_retries": 0}
    return ooms | {f"{kind}.all.{when}": n for kind in kinds for when, n in (("current", now), ("peak", peak))}


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of the device; starts the engine."""
    port = activation.device()
    return port.free_bytes(), port.properties().total_memory


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit this process to a `fraction` (0 to 1) of the device's memory; starts the engine.

    A program that would exceed it raises torch.OutOfMemoryError; allocated memory stays. Raises TypeError unless
    `fraction` is a float, and ValueError outside 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    activation.device().allow_memory(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the fraction of the device's memory that this process may use; 1.0 unless it was set."""
    started = activation.started_device()
    return 1.0 if started is None else started.memory_fraction()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the table of live memory, by category and source line, of `lazytpu.memory()`; starts the engine."""
    return activation.device().summary()


def empty_cache() -> None:
    """Do nothing: memory of dead values returns to XLA at once."""
