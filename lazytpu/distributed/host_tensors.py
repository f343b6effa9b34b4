"""Collectives of tensors of the CPU, which gloo runs.

Gloo ends a process that gets more than it expects, and its other errors name no rank. So the ranks compare what they
call, as they do for the device, and what fails is explained by what the control plane knows. A call starts when all
members are there. One that returns a handle then does so on the thread that hears of it, since its caller may be doing
something else that others wait for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
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
        order = self.world.host_order(self.key, HostOrder)
        with order.lock:
            called = self.world.meeting("CPU tensors", self.key, self.members, _signature(name, args, how))
            work = HostWork(order, called, lambda: run(*args, **kwargs))
            order.waiting.append(work)
        if how is None or not how.asyncOp:
            work.started()
        return work


class HostOrder:
    """What of one group is `waiting` for its members, in the order of the calls, in which gloo has to start it. The
    `lock` is held while a call says what it is, and until it is the last."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.waiting: deque[HostWork] = deque()

    def agreed(self, count: int) -> None:
        """All members have come to so many calls: start those."""
        with self.lock:
            while self.waiting and self.waiting[0].number < count:
                self.waiting.popleft().start()


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
    """The handle of gloo's work, which `begin` starts when all members have come; its errors say more."""

    def __init__(self, order: HostOrder, called: Collective, begin: Callable[[], Any]):
        super().__init__()
        assert called.number is not None
        self.number = called.number
        self._order = order
        self._called = called
        self._begin: Callable[[], Any] | None = begin
        self._work: Any = None
        self._error: Exception | None = None

    def start(self) -> None:
        """Start gloo's work."""
        assert self._begin is not None
        self._called.met()
        try:
            self._work = self._begin()
        except Exception as error:  # noqa: BLE001  (raised where it is waited for)
            self._error = error
        self._begin = None  # it holds the tensors

    def started(self, seconds: float | None = None) -> Any:
        """Gloo's work, once all members have come; after so many seconds they have not. Raises CollectiveError."""
        if self._begin is not None:
            self._called.meet(seconds)
            self._order.agreed(self.number + 1)
        if self._error is not None:
            with explained(self._called):
                raise self._error
        return self._work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done. Raises CollectiveError."""
        work = self.started(timeout.total_seconds() if timeout > NO_TIMEOUT else None)
        with explained(self._called):
            return work.wait(timeout) if timeout > NO_TIMEOUT else work.wait()

    def get_future(self) -> Any:
        """Gloo's own, with its errors, once all members have come."""
        return self.started().get_future()

    def result(self) -> Any:
        """The tensors, when it is done."""
        return self.started().result()

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        called = self._called
        late = time.monotonic() - called.entry.times[0] > called.world.seconds[called.entry.group]
        if self._begin is not None and (late or called.world.control.why_broken(called.entry.group)):
            try:
                self.started(0.0)
            except CollectiveError as error:
                self._error, self._begin = error, None
        return self._error is not None or (self._work is not None and self._work.is_completed())

    def is_success(self) -> bool:
        """Whether it is done."""
        return self._work is not None and self._work.is_success()

    def exception(self) -> Any:
        """Why it has failed."""
        return self._error if self._work is None else self._work.exception()

    def synchronize(self) -> None:
        """There is no stream that has to wait for it."""
        self.started().synchronize()


def _signature(name: str, args: tuple[Any, ...], how: Any) -> str:
    """What has to be equal on all members: `broadcast(root 0) of CPU tensors float32[4]`; gloo looks at the number of
    elements alone."""
    root = f"(root {how.rootRank})" if hasattr(how, "rootRank") else ""
    tensors = _flat(args[EQUAL[name]]) if name in EQUAL else []
    sizes = ", ".join(f"{str(each.dtype).removeprefix('torch.')}[{each.numel()}]" for each in tensors)
    return f"{name}{root} of CPU tensors {sizes}".strip()


def _flat(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else [part for each in tensors for part in _flat(each)]
