"""`torch.accelerator` for the device: the functions whose C++ part a device in Python cannot provide."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.device import device_module, memory_stats
from lazytpu.frontend.device.indices import known
from lazytpu.frontend.torch_private import ACCELERATOR_RANDOM


def synchronize(device: Any = None, /) -> None:
    """Run the pending ops of all threads, and wait for the device."""
    device_module.synchronize(device)


def current_stream(device: Any = None, /) -> torch.Stream:
    """Return the device's queue."""
    return device_module.current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    """Do nothing: there is one queue."""


def set_device_index(device: Any, /) -> None:
    """Check that `device` is this process's device."""
    device_module.set_device(device)


def device_count() -> int:
    """Return the number of processes that the launcher has started on this machine, each of which drives one device; 1
    without a launcher."""
    return device_module.device_count()


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """Return (free, total) bytes of the device."""
    return memory_stats.mem_get_info(device_index)


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """Return the dtypes that tensors of the device may have, under "supported_dtypes"."""
    return device_module.get_device_capability(device)


def empty_host_cache() -> None:
    """Do nothing: host memory is not cached."""


def initial_seed(device: Any = None, /) -> int:
    """Return the seed from which the default generator's stream started."""
    known(device)
    return device_module.initial_seed()


def get_rng_state(device: Any = None, /) -> torch.Tensor:
    """Return the state of the default generator."""
    return device_module.get_rng_state(device)


_OURS = (
    synchronize, current_stream, set_stream, set_device_index, device_count, get_memory_info, get_device_capability
)  # fmt: skip


_RANDOM = initial_seed, get_rng_state


def install() -> None:
    """Replace torch's functions by the functions above, and by the functions about memory."""
    accelerator: Any = torch.accelerator
    for function in (*_OURS, empty_host_cache):
        setattr(accelerator, function.__name__, function)
    for name in dir(memory_stats):
        if hasattr(accelerator, name) and callable(getattr(memory_stats, name)):
            setattr(accelerator, name, getattr(memory_stats, name))
    for function in _RANDOM if ACCELERATOR_RANDOM is not None else ():
        setattr(ACCELERATOR_RANDOM, function.__name__, function)
