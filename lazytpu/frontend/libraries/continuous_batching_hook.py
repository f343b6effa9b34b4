"""Continuous batching of transformers on the device: its cache is sized by the device's memory.

transformers queries the memory of CUDA, XPU and MPS, and uses the host's for any other device. Installed when the
modules of continuous batching are imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.device import memory_stats
from lazytpu.frontend.libraries.on_import import warn_unchecked
from lazytpu.frontend.libraries.transformers_hook import CHECKED

OF_HOST = 0.25
"The share of the host's memory, which other processes use, too. Programs may also copy a mask, which is large."

Memory = tuple[torch.device, int, int, int]
"The device, and its total, reserved and allocated bytes."


class _Making(threading.local):
    """Whether this thread is creating a cache on the device. The function that reports memory does not know the cache's
    device."""

    on_device = False


_MAKING = _Making()


def _making(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def __init__(self: Any, config: Any, continuous_batching_config: Any, device: Any, *args: Any, **rest: Any) -> None:
        before, _MAKING.on_device = _MAKING.on_device, torch.device(device).type == "tpu"
        try:
            make(self, config, continuous_batching_config, device, *args, **rest)
        finally:
            _MAKING.on_device = before

    return __init__


def _memory(of_others: Callable[[], Memory]) -> Callable[[], Memory]:
    @wraps(of_others)
    def get_device_and_memory_breakdown() -> Memory:
        if not _MAKING.on_device:
            return of_others()
        free, total = memory_stats.mem_get_info()
        return torch.device("tpu"), total, memory_stats.memory_reserved(), total - free

    return get_device_and_memory_breakdown


def _share(resolve: Callable[..., None]) -> Callable[..., None]:
    """Give the cache a smaller share where the device's memory is the host's."""

    @wraps(resolve)
    def resolve_max_memory_percent(cb_config: Any, has_logit_processors: bool, device: Any = None) -> None:
        chosen = cb_config.max_memory_percent is not None
        resolve(cb_config=cb_config, has_logit_processors=has_logit_processors, device=device)
        if device is not None and device.type == "tpu" and not chosen and activation.device().platform() == "cpu":
            cb_config.max_memory_percent = OF_HOST

    return resolve_max_memory_percent


def _hook_cache(module: ModuleType) -> None:
    import transformers

    warn_unchecked("transformers", transformers.__version__, CHECKED)
    cache: Any = module
    cache.PagedAttentionCache.__init__ = _making(cache.PagedAttentionCache.__init__)
    cache.get_device_and_memory_breakdown = _memory(cache.get_device_and_memory_breakdown)


def _hook_settings(module: ModuleType) -> None:
    settings: Any = module
    settings.resolve_max_memory_percent = _share(settings.resolve_max_memory_percent)


HOOKS = {
    "transformers.generation.continuous_batching.cache": _hook_cache,
    "transformers.generation.continuous_batching.initialization": _hook_settings,
}
