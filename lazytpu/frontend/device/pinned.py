"""Pinned memory: copies to the device take a snapshot at once, so plain host memory works as well.

`tensor.pin_memory()` and `DataLoader(pin_memory=True)` therefore work, and give plain copies.
"""

from __future__ import annotations

import torch

_libraries: list[torch.library.Library] = []  # a library's registrations end with it


def pin_memory(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """aten::_pin_memory of a CPU tensor: a copy."""
    return tensor.clone(memory_format=torch.contiguous_format)


def install() -> None:
    """Give CPU tensors a `pin_memory` that needs no allocator in C++."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", pin_memory, "CPU")
    _libraries.append(library)
