"""Pinned memory: copies to the device take a snapshot at once, so plain host memory works as well.

`tensor.pin_memory()` and `DataLoader(pin_memory=True)` therefore work, and give plain copies, which say that they are
pinned: FSDP2 with parameters on the CPU pins what is not, again and again, and loses sight of the optimizer's.
"""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.library import replace_kernel

_libraries: list[torch.library.Library] = []  # a library's registrations end with it


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose memory counts as pinned from now on."""
    storage: Any = tensor.untyped_storage()
    storage._pinned = True
    return tensor


def pin_memory(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """aten::_pin_memory of a CPU tensor: a copy."""
    return mark(tensor.clone(memory_format=torch.contiguous_format))


def is_pinned(tensor: torch.Tensor, device: torch.device | None = None) -> bool:
    """aten::is_pinned of a CPU tensor."""
    return getattr(tensor.untyped_storage(), "_pinned", False)


def install() -> None:
    """Give CPU tensors a `pin_memory` that needs no allocator in C++."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", pin_memory, "CPU")
    replace_kernel(library, "is_pinned", is_pinned, "CPU")
    _libraries.append(library)
