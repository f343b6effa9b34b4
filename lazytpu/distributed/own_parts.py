"""DTensor: each rank takes its own part of a tensor that all ranks hold, by one op that is the same on all ranks."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from lazytpu.distributed.group import DeviceGroup
from lazytpu.distributed.imagined import ImaginedGroup, is_imagined
from lazytpu.frontend.tensors import recorder


def of_the_group(native: Any) -> Any:
    """Wrap `Shard._replicate_to_shard`: a change from Replicate to Shard is one op, whose program is the same on all
    ranks. torch slices at an offset that it computes from the rank. Parts of unequal sizes are left to torch, and a
    rank whose place in the mesh is not that in its group, which torch sorts."""

    @wraps(native)
    def replicate_to_shard(self: Any, tensor: torch.Tensor, mesh: Any, mesh_dim: int, index: Any) -> torch.Tensor:
        if type(tensor) is torch.Tensor and tensor.device.type == "tpu":
            group = mesh.get_group(mesh_dim)
            in_order = isinstance(group, DeviceGroup) and index == group.rank()
            if in_order and tensor.shape[self.dim] % group.size() == 0:
                return group.own_part(tensor, self.dim)
        return native(self, tensor, mesh, mesh_dim, index)

    return replicate_to_shard


def of_the_same(native: Any) -> Any:
    """Wrap DTensor's `mesh_scatter`, by which `distribute_tensor` sends parts of the first rank's tensor. All ranks
    have split it, so that each has its part already, though the first rank may not exist."""

    @wraps(native)
    def mesh_scatter(output: Any, parts: Any, mesh: Any, mesh_dim: int = 0, *args: Any, **kwargs: Any) -> Any:
        group = mesh.get_group(mesh_dim) if is_imagined() else None
        if not isinstance(group, ImaginedGroup) or recorder().platform is not None:
            return native(output, parts, mesh, mesh_dim, *args, **kwargs)
        output.copy_(parts[group.rank()])
        return None

    return mesh_scatter
