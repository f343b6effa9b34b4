"""Process groups for the device: `torch.distributed` with the backend "tpu".

The room is imported when the first process group is created.

- `group` implements torch's `ProcessGroup`; `ops` defines the ops that it records.
- `world` joins a job; `control` and `helper` are the client and the server of the control plane.
- `watch` detects collectives that hang, and `flight` keeps the history of collectives that reports show.
- `imagined` has the groups of `lazytpu.imagined_job`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["mesh", "report"]


def report() -> str:
    """Return the history of this rank's collectives: the last 64 of each process group, one line each.

    A line has the collective's number, its state (recorded, posted to the other ranks, agreed by them, launched, done
    or failed), op, reduction, dtype, shape, the user's source line, and times.

    Raises RuntimeError in a process without process groups on "tpu".
    """
    from lazytpu.distributed import world

    if world.WORLD is None:
        raise RuntimeError('this process is in no process group on "tpu": call torch.distributed.init_process_group()')
    return world.WORLD.report()


def mesh(shape: Sequence[int], names: Sequence[str] | None = None) -> DeviceMesh:
    """Return a DeviceMesh of all ranks whose axes lie along the rings of the TPU's torus, where sizes permit it.

    `names` are those of the axes. The last axis communicates over the links alone; the first one also covers the slices
    of a job of several. `init_device_mesh` numbers the ranks host by host instead, so that its axes share links.

    The topology is that of the job's TPUs, or of `lazytpu.imagined_job(topology=...)`. On other platforms, and in
    imagined jobs without a topology, ranks are in order. Raises ValueError for a shape of another number of ranks.
    """
    from lazytpu.distributed.rings import device_mesh

    return device_mesh(shape, names)
