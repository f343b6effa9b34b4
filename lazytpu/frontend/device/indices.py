"""The index of a device. A process drives one, and its tensors are on tpu:0 (torch gives a device in Python no other
index). Scripts written for CUDA call the device of a rank by LOCAL_RANK, so that is another name of it."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.launcher import local_rank, local_size


def own(index: int | None) -> bool:
    """Whether an index names the device of this process; None does, and -1, torch's word for none in particular."""
    return index is None or index <= 0 or (index == local_rank() and index < (local_size() or 1))


def check(index: int | None) -> None:
    """Raise RuntimeError for the index of a device that is not this process's, as torch does for one that is not
    there."""
    if own(index):
        return
    rank = local_rank()
    if rank is None:
        how = "Start one process per device (torchrun) to use more."
    else:
        other = f" or tpu:{rank}" if rank and own(rank) else ""
        how = f"It is rank {rank} of this machine, and its device is tpu:0{other}; the others have their own."
    raise RuntimeError(f"invalid device tpu:{index}: this process drives one device, tpu:0. {how}")


def index_of(device: Any = None) -> int:
    """The index that a device argument (None, an index, "tpu:0", a torch.device) means: 0, the only one.

    Raises RuntimeError for the device of another process, ValueError for another kind of device.
    """
    check(_number(device))
    return 0


def known(device: Any = None) -> None:
    """Check an argument of what is equal for all devices of this machine's ranks, or kept once for the process: the
    device may be that of another rank.

    Raises RuntimeError for a device that no rank has, ValueError for another kind of device.
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
