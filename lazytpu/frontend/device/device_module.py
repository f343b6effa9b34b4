"""The module `torch.tpu`: what `torch.cuda` offers, for one TPU (or whatever XLA runs on).

Importing it costs nothing: only what needs the engine starts it. One process drives one device, tpu:0; start one
process per device (torchrun) to use more. Each rank's own is tpu:0, and tpu:LOCAL_RANK is another name of it.
"""

from __future__ import annotations

import sys
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
    "stream",
    "synchronize",
    "utilization",
]

OutOfMemoryError = torch.OutOfMemoryError

# `Tensor.storage_type()` looks for the class here; it is that of the CPU.
DoubleStorage, FloatStorage, HalfStorage = torch.DoubleStorage, torch.FloatStorage, torch.HalfStorage
BFloat16Storage, ComplexFloatStorage = torch.BFloat16Storage, torch.ComplexFloatStorage
ComplexDoubleStorage, BoolStorage, ByteStorage = torch.ComplexDoubleStorage, torch.BoolStorage, torch.ByteStorage
CharStorage, ShortStorage, IntStorage = torch.CharStorage, torch.ShortStorage, torch.IntStorage
LongStorage = torch.LongStorage

# torch.utils.checkpoint saves and restores the state of our generator only where this is true.
_initialized = True

default_generators: tuple[TpuGenerator, ...] = (default_generator,)


# The device


def is_available() -> bool:
    """True: XLA runs on a TPU, a GPU or the CPU; `get_device_properties().platform` says which."""
    return True


def is_initialized() -> bool:
    """Whether the engine runs (it starts with the first tensor)."""
    return activation.started_device() is not None


def init() -> None:
    """Start the engine, which otherwise starts with the first tensor."""
    activation.activate()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one whose engine ran; XLA's threads do not survive a fork."""
    from lazytpu.frontend.device import forks

    return forks.FORKED


def device_count() -> int:
    """As many as the launcher has started processes on this machine, each of which drives one; 1 without a launcher."""
    return local_size() or 1


def current_device() -> int:
    """0: what this process's tensors name their device by, whatever its rank."""
    return 0


def set_device(device: Any) -> None:
    """Check that `device` is the device of this process: tpu:0, or tpu:LOCAL_RANK."""
    index_of(device)


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name, platform and memory of the device; starts the engine."""
    known(device)
    return activation.device().properties()


def get_device_name(device: Any = None) -> str:
    """The device as XLA calls it, for example "TPU v5 lite"; starts the engine."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """The result of `torch.accelerator.get_device_capability`: the dtypes that tensors of the device may have, under
    "supported_dtypes". There is no hardware version, unlike in `torch.cuda`; starts the engine."""
    known(device)
    return {"supported_dtypes": activation.device().dtypes()}


def utilization(device: Any = None) -> int:
    """Percent of the time since the last call, at least 1/6 second, in which the device ran programs of this process.

    The engine measures some runs of each program and assumes the same time for the others; it does not see other
    processes. 0 before the first tensor.
    """
    index_of(device)
    started = activation.started_device()
    return 0 if started is None else started.busy_percent()


class device:
    """Context manager that makes a device the current one. There is one, so it only checks the argument."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        return None


class device_of(device):
    """Like `device`, for the device of a tensor or storage; one on another device changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


# Waiting


def synchronize(device: Any = None) -> None:
    """Run what every thread recorded, and wait until the device is done.

    Raises IndexError when an index was out of range on the device, and RuntimeError when a program failed there.
    """
    from lazytpu.frontend.device import streams

    index_of(device)
    streams.synchronize()


def current_stream(device: Any = None) -> Stream:
    """The device's queue."""
    from lazytpu.frontend.device import streams

    index_of(device)
    return streams.current()


default_stream = current_stream


def set_stream(stream: torch.Stream) -> None:
    """Nothing to do: there is one queue."""


class StreamContext:
    """Context manager that makes a stream the current one. There is one queue, so it does nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        return self.stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        return None


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context in which `stream` is the current one."""
    return StreamContext(stream)


# Random numbers


def manual_seed(seed: int) -> None:
    """Start the default generator's stream of `seed`."""
    default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Start the default generator's stream of a seed from the system's entropy."""
    default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed that the default generator's stream started from."""
    return default_generator.initial_seed()


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """The default generator's (seed, offset) as 16 bytes on the CPU. Needs no device, waits for nothing."""
    known(device)
    return default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    """Continue from a state that `get_rng_state` returned."""
    known(device)
    default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    (state,) = new_states
    set_rng_state(state)


# Precision


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: XLA has bfloat16 everywhere, in hardware on a TPU."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("tpu")` may compute in."""
    return [torch.bfloat16, torch.float16]


MODULE = sys.modules[__name__]
