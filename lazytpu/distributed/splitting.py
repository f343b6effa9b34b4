"""`torch.distributed.split_group`: groups that are split off another one, without a call per group on all ranks.

torch supports it for a default group that is bound to a device. Here the group is bound only during the split. A
permanent binding would make torch request the device's backend from groups of other backends, as of
`new_group(backend="gloo")`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore


class Splitting:
    """The methods of a process group for splitting. `make` creates a group from torch's `DistributedBackendOptions`."""

    members: list[int]
    rank: Callable[[], int]
    make: Callable[[Any], Any]
    store: Any
    key: str
    splits = 0

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def options(self) -> None:
        """Return None: the backend has no options that a new group could inherit."""

    def get_group_store(self) -> Any:
        return self.store

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Do nothing: the members connect in their first collective."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: a rank outside all new groups takes no part in creating them."""

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: datetime.timedelta,
        opts: Any = None,
        group_name: Any = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
        """Return the group of these member indices, or None if this process is not among them.

        All members call it, for disjoint groups. The members meet under a name of their own: torch's `group_name`
        counts the groups of a process, and so differs between members.
        """
        self.splits += 1
        if self.rank() not in ranks:
            return None
        name = f"{self.key}:{self.splits}:{ranks[0]}"
        request = SimpleNamespace(
            store=PrefixStore(f"{name}/", self.store),
            group_rank=list(ranks).index(self.rank()),
            group_size=len(ranks),
            timeout=timeout,
            group_id=name,
            global_ranks_in_group=[self.members[index] for index in ranks],
        )
        group = self.make(request)
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "undefined")
        return group


def install() -> None:
    """Bind the default group to the device during each `split_group`."""
    native = dist.split_group

    @wraps(native)
    def split_group(*args: Any, **kwargs: Any) -> Any:
        default: Any = dist.group.WORLD
        if not isinstance(dist.group.WORLD, Splitting):
            return native(*args, **kwargs)
        default.bound_device_id = torch.device("tpu", 0)
        try:
            return native(*args, **kwargs)
        finally:
            default.bound_device_id = None

    dist.split_group = distributed_c10d.split_group = split_group
