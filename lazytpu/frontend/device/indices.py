"""Device indices. A process drives one device, and its tensors are on tpu:0 (torch gives a device in Python no other
index). Scripts written for CUDA address a rank's device by LOCAL_RANK, so that is an alias."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.launcher import local_rank, local_size


def own(index: int | None) -> bool:
    """Return whether an index means this process's device. None does, and so does -1, torch's index for
    "unspecified"."""
    return index is None or index <= 0 or (index == local_rank() and index < (local_size() or 1))


def check(index: int | None) -> None:
    """Raise RuntimeError for an index of another device, as torch does for a device that does not exist."""
    if own(index):
        return
    rank = local_rank()
    if rank is None:
        hint = "Start one process per device (torchrun) to use more."
    else:
        alias = f" or tpu:{rank}" if rank and own(rank) else ""
        hint = f"It is rank {rank} of this machine, and its device is tpu:0{alias}; the others have their own."
    raise RuntimeError(f"invalid device tpu:{index}: this process drives one device, tpu:0. {hint}")


def index_of(device: Any = None) -> int:
    """Return the index that a device argument (None, an index, "tpu:0", a torch.device) means: 0, the only one.

    Raises RuntimeError for the device of another process, and ValueError for another device type.
    """
    check(_number(device))
    return 0


def known(device: Any = None) -> None:
    """Check a device argument of a function that is the same for all ranks of this machine, or for the whole process:
    the device may belong to another rank.

    Raises RuntimeError for a device that no rank has, and ValueError for another device type.
    """
    index = _number(device)
    if index is None or index >= (local_size() or 1):
        check(index)


def _number(device: Any) -> int | None:
    if device is None or isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return device.index
