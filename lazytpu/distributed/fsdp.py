"""FSDP on the device: the op whose way of saving memory costs a program per rank, how modules on the CPU move, and
the names of a rank's device."""

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

_libraries: list[torch.library.Library] = []  # a library's registrations end with it


def _copy_in(
    inputs: list[torch.Tensor], output: torch.Tensor, sizes: list[int], numel: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """fsdp::all_gather_copy_in: what this rank sends, in memory of its own. torch's own writes it into this rank's part
    of `output`, whose place is another on each rank; here the gather makes its own output."""
    with torch.no_grad():
        return torch.cat([each.reshape(-1) for each in inputs]), output


def _become(tensor: torch.Tensor, device: torch.device) -> None:
    """Move a parameter or buffer of the CPU; the object stays."""
    moved = tensor.detach().to(device)
    if isinstance(tensor, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    swap_tensor_impl(tensor, moved)


def _named(native: Any) -> Any:
    """torch's own compares the `device_id` of a rank with the device of its parameters, which has one name alone."""

    def device_of(*given: Any) -> torch.device | None:
        device = native(*given)
        if device is None or device.type != "tpu":
            return device
        return torch.device("tpu", index_of(device))

    return device_of


def _moving(native: Any) -> Any:
    """torch's own assigns to `.data`, which refuses a tensor of another kind of device."""

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
    """Hook FSDP when it is imported, since it registers its own kernel then."""
    for place in (FSDP_MOVE, FSDP2_MOVE):
        replace_when_imported(place, _moving)
    replace_when_imported(FSDP_DEVICE, _named)
    call_when_imported(FLAT_PARAM, fsdp_states.adapt)
    call_when_imported(FSDP2_COPY_IN, _replace)
