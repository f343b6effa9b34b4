"""FSDP1's parameters on the CPU for a while: what a full state dict with `offload_to_cpu` collects, and what
`summon_full_params(offload_to_cpu=True)` shows.

FSDP1 assigns tensors of the CPU to the `.data` of parameters on the device, which torch refuses for a device in Python.
What a parameter is made of is swapped here, and swapped back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lazytpu.frontend.torch_private import swap_tensor_impl


def _swapped(parameter: torch.Tensor, data: torch.Tensor) -> torch.nn.Parameter:
    """Give a parameter other contents: what it had, which it gets back by another swap."""
    contents = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
    swap_tensor_impl(parameter, contents)
    return contents


def adapt(handle: Any) -> None:
    """Change the class that has the parameters of a module."""
    native_to, native_to_cpu = handle.flat_param_to, handle.to_cpu

    def flat_param_to(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.flat_param.device.type == "tpu" and args and torch.device(args[0]).type == "cpu":
            raise NotImplementedError(
                "FullyShardedDataParallel cannot keep parameters of the device 'tpu' on the CPU (cpu_offload): use "
                "torch.distributed.fsdp.fully_shard with CPUOffloadPolicy"
            )
        native_to(self, *args, **kwargs)

    @contextmanager
    def to_cpu(self: Any) -> Iterator[None]:
        flat = self.flat_param
        if flat.device.type != "tpu":
            with native_to_cpu(self):
                yield
            return
        copy = flat.detach().cpu()
        # With use_orig_params; of tied ones the object is there twice.
        originals = {id(each): each for each in (*(flat._params or ()), *(flat._shared_params or ()))}
        held = [(each, _swapped(each, copy[:0])) for each in originals.values()]
        held.append((flat, _swapped(flat, copy)))
        if self._use_orig_params:
            self._use_unsharded_views(as_params=True)
        self._free_unsharded_flat_param()
        try:
            yield
        finally:
            whole = self._alloc_padded_unsharded_flat_param()
            whole[: flat.numel()].copy_(flat.detach())
            for each, contents in held:
                swap_tensor_impl(each, contents)
            self._use_unsharded_flat_param(whole)

    handle.flat_param_to, handle.to_cpu = flat_param_to, to_cpu
