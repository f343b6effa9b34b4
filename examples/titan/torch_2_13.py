"""The names of torch that TorchTitan 0.3.0 calls and torch 2.13 lacks, on every device.

`add()` adds them, before Titan is imported; a torch that has them keeps its own:

- `torch.distributed.set_timeout(timeout, group)` sets how long collectives of a group wait.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d


def add() -> None:
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = set_timeout  # pyright: ignore[reportAttributeAccessIssue]


def set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    """Set the timeout of a group's collectives; of the default group if there is none."""
    distributed_c10d._set_pg_timeout(timeout, group)  # pyright: ignore[reportPrivateUsage]
