"""Process groups of the device: `torch.distributed` on "tpu".

Nothing of it is imported before a process group is made. `group` is what torch calls, `ops` what it records, `world`
starts the job, `control` and `helper` are the control plane, `watch` and `flight` say what hangs.
"""

from __future__ import annotations

__all__ = ["report"]


def report() -> str:
    """The last 64 collectives of each process group, and how far they came on this rank: a line for each, with its
    number, its state (recorded, posted to the other ranks, agreed by them, launched, done, failed), op, reduction,
    dtype and shape, the user's line, and times.

    Raises RuntimeError in a process without process groups on "tpu".
    """
    from lazytpu.distributed import world

    if world.WORLD is None:
        raise RuntimeError('this process is in no process group on "tpu": call torch.distributed.init_process_group()')
    return world.WORLD.report()
