"""`torch.distributed.split_group`: groups that are made of another one, without a call for each of them on all ranks.

It works for a default group that is bound to a device. Here that is bound while it is split alone: torch would ask a
group of another backend, as by `new_group(backend="gloo")`, for that of the device.
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
    """The part of a process group that does this. `make` gives the group of what torch's backends are asked for."""

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
        """Of the backend, which the new group inherits: there are none."""

    def get_group_store(self) -> Any:
        return self.store

    def eager_connect_single_device(self, device: torch.device) -> None:
        """The members connect in their first collective."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Who is not in a group has no part in making it."""

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: datetime.timedelta,
        opts: Any = None,
        group_name: Any = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
        """The group of the members with these numbers in this one; None if this process is none of them.

        All members call it, for disjoint groups. torch's name of the group has in it how many groups this process is
        in, which is another number on another member, so it is not the one that they meet under.
        """
        self.splits += 1
        if self.rank() not in ranks:
            return None
        name = f"{self.key}:{self.splits}:{ranks[0]}"
        asked = SimpleNamespace(
            store=PrefixStore(f"{name}/", self.store),
            group_rank=list(ranks).index(self.rank()),
            group_size=len(ranks),
            timeout=timeout,
            group_id=name,
            global_ranks_in_group=[self.members[each] for each in ranks],
        )
        made = self.make(asked)
        made._set_group_name(group_name)
        made._set_group_desc(group_desc or "undefined")
        return made


def install() -> None:
    """Bind the default group to the device while a group is split."""
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
