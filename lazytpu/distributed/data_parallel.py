"""DistributedDataParallel with unused parameters or a static graph, and its communication hooks in bfloat16.

Its C++ reducer copies a table of the used parameters through pinned memory (torch 2.13). Pinned memory needs an
allocator that a device in Python cannot register. So a process with such a model allocates ordinary CPU memory when
pinned memory is requested. Nothing is lost: copies to the device take a snapshot at once.

DistributedDataParallel accepts `bf16_compress_hook` only on CUDA and XPU, though nothing in it is specific to them.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from lazytpu.frontend.device import pinned
from lazytpu.frontend.library import replace_kernel
from lazytpu.frontend.tensors import extent

_libraries: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """The kernel of aten::empty_strided on the CPU; "pinned" memory is ordinary memory with a mark."""
    tensor = torch.empty(extent(tuple(size), tuple(stride)), dtype=dtype, device="cpu").as_strided(size, stride)
    return pinned.mark(tensor) if pin_memory else tensor


def _pin() -> None:
    if not _libraries:
        library = torch.library.Library("aten", "IMPL")
        replace_kernel(library, "empty_strided", _empty_strided, "CPU")
        _libraries.append(library)


def _unnamed(hook: Any) -> Any:
    """Return `hook` under another name, because DistributedDataParallel rejects it by its name."""

    @wraps(hook)
    def communication_hook(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    communication_hook.__name__ = "communication_hook"
    return communication_hook


def _is_on_device(model: Any) -> bool:
    return any(parameter.device.type == "tpu" for parameter in model._module_parameters)


def install() -> None:
    """Patch DistributedDataParallel, so that each model that is wrapped from now on is checked."""
    wrapper: Any = DistributedDataParallel
    init, set_static, check = wrapper._ddp_init_helper, wrapper._set_static_graph, wrapper._check_comm_hook

    def ddp_init_helper(self: Any, parameters: Any, sparse: Any, names: Any, static_graph: bool) -> Any:
        if (static_graph or self.find_unused_parameters) and any(p.device.type == "tpu" for p in parameters):
            _pin()
        return init(self, parameters, sparse, names, static_graph)

    def set_static_graph(self: Any) -> Any:
        _pin()
        return set_static(self)

    def check_comm_hook(self: Any, hook: Any) -> Any:
        return check(self, _unnamed(hook) if callable(hook) and _is_on_device(self) else hook)

    wrapper._ddp_init_helper, wrapper._set_static_graph = ddp_init_helper, set_static_graph
    wrapper._check_comm_hook = check_comm_hook
