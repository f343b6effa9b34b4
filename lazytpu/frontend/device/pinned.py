"""Pinned memory. Copies to the device take a snapshot at once, so ordinary host memory works as well.

Therefore `tensor.pin_memory()` and `DataLoader(pin_memory=True)` return ordinary copies that report to be pinned. The
report matters: FSDP2 with parameters on the CPU would pin an unpinned tensor again and again, and lose the optimizer's
tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.library import replace_kernel

_libraries: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the tensor's memory as pinned. Returns the tensor."""
    storage: Any = tensor.untyped_storage()
    storage._pinned = True
    return tensor


def pin_memory(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """The kernel of aten::_pin_memory for a CPU tensor: a copy."""
    return mark(tensor.clone(memory_format=torch.contiguous_format))


def is_pinned(tensor: torch.Tensor, device: torch.device | None = None) -> bool:
    """The kernel of aten::is_pinned for a CPU tensor."""
    return getattr(tensor.untyped_storage(), "_pinned", False)


def install() -> None:
    """Register CPU kernels for `pin_memory` and `is_pinned` that need no C++ allocator."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", pin_memory, "CPU")
    replace_kernel(library, "is_pinned", is_pinned, "CPU")
    _libraries.append(library)
