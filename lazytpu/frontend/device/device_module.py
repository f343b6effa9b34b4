"""The module `torch.tpu`: the interface of `torch.cuda`, for one TPU (or another platform of XLA).

Importing it is cheap: only functions that need the engine start it. One process drives one device, tpu:0; start one
process per device (torchrun) to use more. Each rank's own device is tpu:0, and tpu:LOCAL_RANK is an alias for it.
"""

from __future__ import annotations

import sys
from operator import index
from types import TracebackType
from typing import Any

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.device.generators import TpuGenerator, default_generator
from lazytpu.frontend.device.indices import index_of, known
from lazytpu.frontend.device.memory_stats import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from lazytpu.frontend.device.streams import TpuEvent as Event
from lazytpu.frontend.device.streams import TpuStream as Stream
from lazytpu.launcher import local_size
from lazytpu.ports import DeviceProperties

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "utilization",
]

OutOfMemoryError = torch.OutOfMemoryError

# `Tensor.storage_type()` looks the class up here; it is the CPU's class.
DoubleStorage, FloatStorage, HalfStorage = torch.DoubleStorage, torch.FloatStorage, torch.HalfStorage
BFloat16Storage, ComplexFloatStorage = torch.BFloat16Storage, torch.ComplexFloatStorage
ComplexDoubleStorage, BoolStorage, ByteStorage = torch.ComplexDoubleStorage, torch.BoolStorage, torch.ByteStorage
CharStorage, ShortStorage, IntStorage = torch.CharStorage, torch.ShortStorage, torch.IntStorage
LongStorage = torch.LongStorage

# torch.utils.checkpoint saves and restores the state of our generator only if this is true.
_initialized = True

default_generators: tuple[TpuGenerator, ...] = (default_generator,)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


# The device


def is_available() -> bool:
    """Return True: XLA runs on a TPU, a GPU or the CPU; `get_device_properties().platform` tells which."""
    return True


def is_initialized() -> bool:
    """Return whether the engine runs (it starts with the first tensor)."""
    return activation.started_device() is not None


def init() -> None:
    """Start the engine, which otherwise starts with the first tensor."""
    activation.activate()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    """Return whether this process was forked from a process whose engine ran; XLA's threads do not survive a fork."""
    from lazytpu.frontend.device import forks

    return forks.FORKED


def device_count() -> int:
    """Return the number of processes that the launcher has started on this machine, each of which drives one device; 1
    without a launcher."""
    return local_size() or 1


def current_device() -> int:
    """Return 0, the index of this process's device in its tensors, whatever its rank."""
    return 0


def set_device(device: Any) -> None:
    """Check that `device` is the device of this process: tpu:0, or tpu:LOCAL_RANK."""
    index_of(device)


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return name, platform and memory of the device; starts the engine."""
    known(device)
    return activation.device().properties()


def get_device_name(device: Any = None) -> str:
    """Return the name of the device: "TPU v6e", for example, or "TPU v6e (simulated on a CPU)"; starts the engine."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """Return the dtypes that tensors of the device may have, under "supported_dtypes", as
    `torch.accelerator.get_device_capability`.

    There is no hardware version, unlike in `torch.cuda`. Starts the engine.
    """
    known(device)
    return {"supported_dtypes": activation.device().dtypes()}


def utilization(device: Any = None) -> int:
    """Return the percentage of time since the last call, at least 1/6 second, in which the device ran programs of this
    process.

    The engine measures some runs of each program and assumes the same time for its other runs; it does not see other
    processes. Returns 0 before the first tensor.
    """
    index_of(device)
    started = activation.started_device()
    return 0 if started is None else started.busy_percent()


class device:
    """A context manager that makes a device the current one. There is one device, so it only checks the argument."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        return None


class device_of(device):
    """Like `device`, for the device of a tensor or storage; an object on another device has no effect."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


# Waiting


def synchronize(device: Any = None) -> None:
    """Run the pending ops of all threads, and wait for the device.

    Raises IndexError when an index was out of range on the device, and RuntimeError when a program failed there.
    """
    from lazytpu.frontend.device import streams

    index_of(device)
    streams.synchronize()


def current_stream(device: Any = None) -> Stream:
    """Return the device's queue."""
    from lazytpu.frontend.device import streams

    index_of(device)
    return streams.current()


default_stream = current_stream


def set_stream(stream: torch.Stream) -> None:
    """Do nothing: there is one queue."""


class StreamContext:
    """A context manager that makes a stream the current one. There is one queue, so it does nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        return self.stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        return None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context in which `stream` is the current one."""
    return StreamContext(stream)


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Report reads that wait for the device, at the user's line, as in `torch.cuda`: "warn" or 1 warns, "error" or 2
    raises RuntimeError instead of waiting, "default" or 0 does neither.

    `synchronize()` and events wait because the program asks them to, and are not reported; `lazytpu.waits()` counts
    all. Starts the engine. Raises RuntimeError for another value, TypeError if it is neither text nor an integer.
    """
    from lazytpu.frontend import waits

    init()
    if isinstance(debug_mode, str):
        if debug_mode not in _DEBUG_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        waits.DEBUG_MODE = _DEBUG_MODES.index(debug_mode)
        return
    if index(debug_mode) not in (waits.DEFAULT, waits.WARN, waits.ERROR):
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    waits.DEBUG_MODE = index(debug_mode)


def get_sync_debug_mode() -> int:
    """Return the mode of `set_sync_debug_mode`: 0, 1 or 2. Starts the engine."""
    from lazytpu.frontend import waits

    init()
    return waits.DEBUG_MODE


_DEBUG_MODES = ("default", "warn", "error")


# Random numbers


def manual_seed(seed: int) -> None:
    """Restart the default generator's stream from `seed`."""
    default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Restart the default generator's stream from a seed of the system's entropy."""
    default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """Return the seed from which the default generator's stream started."""
    return default_generator.initial_seed()


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """Return the default generator's (seed, offset) as 16 bytes on the CPU. Needs no device, and does not wait."""
    known(device)
    return default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    """Restore a state that `get_rng_state` returned."""
    known(device)
    default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    (state,) = new_states
    set_rng_state(state)


# Precision


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: XLA supports bfloat16 everywhere, on a TPU in hardware."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes in which `torch.autocast("tpu")` may compute: float32 as well, as with CUDA."""
    return [torch.bfloat16, torch.float16, torch.float32]


MODULE = sys.modules[__name__]
