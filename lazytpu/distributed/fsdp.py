"""FSDP2 on the device: the one op whose way of saving memory costs a program per rank."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.frontend.ops.library import replace_kernel

_libraries: list[torch.library.Library] = []  # a library's registrations end with it


def _copy_in(
    inputs: list[torch.Tensor], output: torch.Tensor, sizes: list[int], numel: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """fsdp::all_gather_copy_in: what this rank sends, in memory of its own. torch's own writes it into this rank's part
    of `output`, whose place is another on each rank; here the gather makes its own output."""
    with torch.no_grad():
        return torch.cat([each.reshape(-1) for each in inputs]), output


def _replace(module: Any) -> None:
    library = torch.library.Library("fsdp", "IMPL")
    replace_kernel(library, "all_gather_copy_in", _copy_in)
    _libraries.append(library)


def install() -> None:
    """Hook FSDP2 when it is imported, since it registers its own kernel then."""
    if not _libraries:
        when_imported("torch.distributed.fsdp._fully_shard._fsdp_collectives", _replace)
