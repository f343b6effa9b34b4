"""FSDP1's temporary copies of parameters on the CPU: for a full state dict with `offload_to_cpu`, and for
`summon_full_params(offload_to_cpu=True)`.

FSDP1 assigns CPU tensors to the `.data` of device parameters, which torch rejects for a device in Python. Here the
tensor implementations are swapped, and swapped back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lazytpu.frontend.torch_private import swap_tensor_impl


def _swapped(parameter: torch.Tensor, data: torch.Tensor) -> torch.nn.Parameter:
    """Give a parameter the contents `data`. Returns a parameter with the old contents, for swapping back."""
    contents = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
    swap_tensor_impl(parameter, contents)
    return contents


def adapt(handle: Any) -> None:
    """Patch the class `FlatParamHandle`, which holds the parameters of a module."""
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
        # These exist with use_orig_params. Tied parameters appear twice, hence the dictionary by identity.
        originals = {id(parameter): parameter for parameter in (*(flat._params or ()), *(flat._shared_params or ()))}
        saved = [(parameter, _swapped(parameter, copy[:0])) for parameter in originals.values()]
        saved.append((flat, _swapped(flat, copy)))
        if self._use_orig_params:
            self._use_unsharded_views(as_params=True)
        self._free_unsharded_flat_param()
        try:
            yield
        finally:
            unsharded = self._alloc_padded_unsharded_flat_param()
            unsharded[: flat.numel()].copy_(flat.detach())
            for parameter, contents in saved:
                swap_tensor_impl(parameter, contents)
            self._use_unsharded_flat_param(unsharded)

    handle.flat_param_to, handle.to_cpu = flat_param_to, to_cpu
