"""Patches of FSDP: the kernel of `all_gather_copy_in`, moves of modules from the CPU, and the index of a rank's
device."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.distributed import fsdp_states
from lazytpu.frontend.device.indices import index_of
from lazytpu.frontend.libraries.places import call_when_imported, replace_when_imported
from lazytpu.frontend.library import replace_kernel
from lazytpu.frontend.torch_private import (
    FLAT_PARAM,
    FSDP2_COPY_IN,
    FSDP2_MOVE,
    FSDP_DEVICE,
    FSDP_MOVE,
    swap_tensor_impl,
)

_libraries: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def _copy_in(
    inputs: list[torch.Tensor], output: torch.Tensor, sizes: list[int], numel: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of fsdp::all_gather_copy_in: return this rank's shard in memory of its own.

    torch's kernel writes the shard into `output` at an offset that differs by rank, and so would need a program per
    rank. Here the all_gather creates its output.
    """
    with torch.no_grad():
        return torch.cat([shard.reshape(-1) for shard in inputs]), output


def _become(tensor: torch.Tensor, device: torch.device) -> None:
    """Move a parameter or buffer from the CPU to `device`, keeping the Python object."""
    moved = tensor.detach().to(device)
    if isinstance(tensor, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    swap_tensor_impl(tensor, moved)


def _named(native: Any) -> Any:
    """Wrap torch's choice of a rank's device, so that it returns the device index of the parameters.

    torch compares it with the parameters' device, for which every rank uses one index.
    """

    def device_of(*arguments: Any) -> torch.device | None:
        device = native(*arguments)
        if device is None or device.type != "tpu":
            return device
        return torch.device("tpu", index_of(device))

    return device_of


def _moving(native: Any) -> Any:
    """Wrap torch's move of parameters: it assigns to `.data`, which rejects a tensor of another device type."""

    def move(params: list[torch.Tensor], buffers: list[torch.Tensor], device: torch.device | None) -> None:
        if device is not None and device.type == "tpu":
            for tensor in (*params, *buffers):
                if tensor.device.type == "cpu":
                    grad, tensor.grad = tensor.grad, None
                    _become(tensor, device)
                    tensor.grad = None if grad is None else grad.to(device)
        native(params, buffers, device)

    return move


def _replace(native: Any) -> None:
    library = torch.library.Library("fsdp", "IMPL")
    replace_kernel(library, "all_gather_copy_in", _copy_in)
    _libraries.append(library)


def install() -> None:
    """Patch FSDP's modules when they are imported; FSDP registers its own kernel at that time."""
    for place in (FSDP_MOVE, FSDP2_MOVE):
        replace_when_imported(place, _moving)
    replace_when_imported(FSDP_DEVICE, _named)
    call_when_imported(FLAT_PARAM, fsdp_states.adapt)
    call_when_imported(FSDP2_COPY_IN, _replace)
