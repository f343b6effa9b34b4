"""`torch.accelerator` for the device: the functions whose C++ part a device in Python cannot provide."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.device import device_module, memory_stats
from lazytpu.frontend.device.indices import known
from lazytpu.frontend.torch_private import ACCELERATOR_RANDOM


def synchronize(device: Any = None, /) -> None:
    """Run what every thread recorded, and wait until the device is done."""
    device_module.synchronize(device)


def current_stream(device: Any = None, /) -> torch.Stream:
    """The device's queue."""
    return device_module.current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    """Nothing to do: there is one queue."""


def set_device_index(device: Any, /) -> None:
    """Check that `device` is the one device there is."""
    device_module.set_device(device)


def device_count() -> int:
    """As many as the launcher has started processes on this machine, each of which drives one; 1 without a launcher."""
    return device_module.device_count()


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    return memory_stats.mem_get_info(device_index)


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """The dtypes that tensors of the device may have, under "supported_dtypes"."""
    return device_module.get_device_capability(device)


def empty_host_cache() -> None:
    """Nothing to do: host memory is not cached."""


def initial_seed(device: Any = None, /) -> int:
    """The seed that the default generator's stream started from."""
    known(device)
    return device_module.initial_seed()


def get_rng_state(device: Any = None, /) -> torch.Tensor:
    """The state of the default generator."""
    return device_module.get_rng_state(device)


_OURS = (
    synchronize, current_stream, set_stream, set_device_index, device_count, get_memory_info, get_device_capability
)  # fmt: skip


_RANDOM = initial_seed, get_rng_state


def install() -> None:
    """Put the functions above, and those about memory, in place of torch's."""
    accelerator: Any = torch.accelerator
    for function in (*_OURS, empty_host_cache):
        setattr(accelerator, function.__name__, function)
    for name in dir(memory_stats):
        if hasattr(accelerator, name) and callable(getattr(memory_stats, name)):
            setattr(accelerator, name, getattr(memory_stats, name))
    for function in _RANDOM if ACCELERATOR_RANDOM is not None else ():
        setattr(ACCELERATOR_RANDOM, function.__name__, function)
