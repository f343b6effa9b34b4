"""torch.distributed with process groups that do not know the device, such as gloo's.

It uses the accelerator of the process, which is "tpu" wherever lazytpu is installed. So a barrier with `device_ids`
would be a barrier of the device, which such a group rejects, and `fully_shard` without a mesh would move the model
there (torch 2.13).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch.distributed as dist

from lazytpu.frontend.libraries.places import replace_when_imported
from lazytpu.frontend.torch_private import FSDP2_MESH


def _knows_device(group: Any) -> bool:
    return any(device.type == "tpu" for device in getattr(group, "_device_types", ()))


def install() -> None:
    """Let both use the CPU if the group does not know the device."""
    barrier: Any = dist.barrier

    @wraps(barrier)
    def with_known_device(group: Any = None, async_op: bool = False, device_ids: Any = None, *args: Any, **kwargs: Any):
        if not _knows_device(group or dist.group.WORLD):
            device_ids = None
        return barrier(group, async_op, device_ids, *args, **kwargs)

    dist.barrier = dist.distributed_c10d.barrier = with_known_device
    replace_when_imported(FSDP2_MESH, _with_known_mesh)


def _with_known_mesh(original: Any) -> Any:
    @wraps(original)
    def default_mesh(mesh_dim_names: Any = None) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        if dist.is_initialized() and not _knows_device(dist.group.WORLD):
            return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=mesh_dim_names)
        return original(mesh_dim_names)

    return default_mesh
