"""Memory in use on the device, under the names of `torch.cuda`.

It is counted where values get and release their memory, not measured, so the figures are the same on every platform.
XLA's pool below is not visible: what is reserved is what is allocated.
"""

from __future__ import annotations

from typing import Any

from lazytpu.frontend import activation


def memory_allocated(device: Any = None) -> int:
    """Bytes of device memory that values hold now; results of ops that were not run yet hold none."""
    started = activation.started_device()
    return 0 if started is None else started.live_bytes()


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes held since the start or `reset_peak_memory_stats`, temporaries of programs included."""
    started = activation.started_device()
    return 0 if started is None else started.peak_bytes()


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart `max_memory_allocated` from what is allocated now."""
    started = activation.started_device()
    if started is not None:
        started.reset_peak()


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Restart the count of out-of-memory errors, the only figure that accumulates."""
    started = activation.started_device()
    if started is not None:
        started.reset_exhausted()


def memory_stats(device: Any = None) -> dict[str, int]:
    """The figures under torch's names: `allocated_bytes.all.current`, `.peak`, the same for `reserved_bytes` and
    `active_bytes`, and `num_ooms`, how often an OutOfMemoryError was raised."""
    now, peak = memory_allocated(device), max_memory_allocated(device)
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
    started = activation.started_device()
    ooms = {"num_ooms": 0 if started is None else started.times_exhausted(), "num_alloc_retries": 0}
    return ooms | {f"{kind}.all.{when}": n for kind in kinds for when, n in (("current", now), ("peak", peak))}


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device; starts the engine."""
    port = activation.device()
    return port.free_bytes(), port.properties().total_memory


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process use at most `fraction` (0 to 1) of the device's memory. A program that would exceed it raises
    torch.OutOfMemoryError; what is allocated already stays. Starts the engine.

    Raises TypeError unless `fraction` is a float, and ValueError outside of 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    activation.device().allow_memory(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The fraction of the device's memory that this process may use: 1.0 unless it was set."""
    started = activation.started_device()
    return 1.0 if started is None else started.memory_fraction()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The table of what is alive, by category and source line, of `lazytpu.memory()`; starts the engine."""
    return activation.device().summary()


def empty_cache() -> None:
    """Nothing to do: memory of dead values goes back to XLA at once."""
