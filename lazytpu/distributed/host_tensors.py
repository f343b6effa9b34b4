"""Collectives of tensors of the CPU, which gloo runs.

Gloo ends a process that gets more than it expects, and its other errors name no rank. So the ranks compare what they
call, as they do for the device, and what fails is explained by what the control plane knows. A call that waits starts
when all members are there. One that returns a handle starts at once, as its caller may do something else that others
wait for; then the comparison only explains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lazytpu.distributed.control import SETTLING, CollectiveError
from lazytpu.distributed.turns import Collective
from lazytpu.distributed.work import NO_TIMEOUT
from lazytpu.distributed.world import World, flush
from lazytpu.options import options

# By the name of a method: which argument has tensors of equal sizes on all members.
EQUAL: dict[str, int] = {"allgather": 1, "gather": 1}
EQUAL |= dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "reduce", "scatter"), 0)


class HostTensors:
    """The part of a process group that does this. `host` is the gloo group of the same `members`."""

    world: World
    key: str
    members: list[int]
    host: Any

    def on_host(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Gloo's method of that name. Raises CollectiveError when a member is gone, does not come, or calls something
        else."""
        flush()
        run = getattr(self.host, name)
        if options.collectives == "trusted":
            return run(*args, **kwargs)
        how = next((each for each in (*args, *kwargs.values()) if hasattr(each, "asyncOp")), None)
        called = self.world.meeting("CPU tensors", self.key, self.members, _signature(name, args, how))
        if how is None or not how.asyncOp:
            called.meet()
        with explained(called):
            return HostWork(run(*args, **kwargs), called)


@contextmanager
def explained(called: Collective) -> Iterator[None]:
    """Gloo's errors with the call, and with what is known of it, after a report."""
    try:
        yield
    except RuntimeError as error:
        why = _why(called) if "gloo" in str(error).lower() else None
        if why is None:
            raise
        with called.named():
            raise CollectiveError(f"{why}\n({error})") from error


def _why(called: Collective) -> str | None:
    """Why it failed, as far as the control plane knows: who is gone, or has not come."""
    control, group = called.world.control, called.entry.group
    if (text := control.why_soon(group, SETTLING)) is not None:
        return text
    assert called.number is not None
    try:
        control.wait(group, called.number, 0, time.monotonic() - called.entry.times[0])
    except CollectiveError as error:
        return str(error)
    return None


class HostWork(dist.Work):
    """The handle of gloo's `work`, whose errors say more."""

    def __init__(self, work: Any, called: Collective):
        super().__init__()
        self.work = work
        self.called = called

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done. Raises CollectiveError."""
        with explained(self.called):
            return self.work.wait(timeout) if timeout > NO_TIMEOUT else self.work.wait()

    def get_future(self) -> Any:
        """Gloo's own, with its errors."""
        return self.work.get_future()

    def result(self) -> Any:
        """The tensors, when it is done."""
        return self.work.result()

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        return self.work.is_completed()

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.work.is_success()

    def exception(self) -> Any:
        """Why it has failed."""
        return self.work.exception()

    def synchronize(self) -> None:
        """There is no stream that has to wait for it."""
        self.work.synchronize()


def _signature(name: str, args: tuple[Any, ...], how: Any) -> str:
    """What has to be equal on all members: `broadcast(root 0) of CPU tensors float32[4]`; gloo looks at the number of
    elements alone."""
    root = f"(root {how.rootRank})" if hasattr(how, "rootRank") else ""
    tensors = _flat(args[EQUAL[name]]) if name in EQUAL else []
    sizes = ", ".join(f"{str(each.dtype).removeprefix('torch.')}[{each.numel()}]" for each in tensors)
    return f"{name}{root} of CPU tensors {sizes}".strip()


def _flat(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else [part for each in tensors for part in _flat(each)]
