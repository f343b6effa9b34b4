"""Process groups for the device: `torch.distributed` with the backend "tpu".

The room is imported when the first process group is created.

- `group` implements torch's `ProcessGroup`; `ops` defines the ops that it records.
- `world` joins a job; `control` and `helper` are the client and the server of the control plane.
- `watch` detects collectives that hang, and `flight` keeps the history of collectives that reports show.
"""

from __future__ import annotations

__all__ = ["report"]


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
