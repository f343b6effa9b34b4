"""Collectives of CPU tensors, which gloo runs.

Gloo aborts a process that receives more data than it expects, and its other errors name no rank. So the ranks compare
their calls over the control plane before gloo starts, as for device tensors, and errors are explained by the control
plane.

A call starts when all members have posted it. An asynchronous call starts on the thread that receives this message,
since its caller may be busy with something that other ranks wait for.
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
from lazytpu.distributed.watch import ANSWER
from lazytpu.distributed.work import NO_TIMEOUT
from lazytpu.distributed.world import World, flush
from lazytpu.options import options

# Method name -> index of the argument whose tensors must have equal sizes on all members.
EQUAL: dict[str, int] = {"allgather": 1, "gather": 1}
EQUAL |= dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "reduce", "scatter"), 0)


class HostTensors:
    """The methods of a process group for CPU tensors. `host` is the gloo group of the same `members`."""

    world: World
    key: str
    members: list[int]
    host: Any

    def on_host(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Run gloo's method `name`. Raises CollectiveError when a member is lost, is late, or calls something else."""
        flush()
        run = getattr(self.host, name)
        if options.collectives == "trusted":
            return run(*args, **kwargs)
        call_options = next((argument for argument in (*args, *kwargs.values()) if hasattr(argument, "asyncOp")), None)
        order = self.world.host_order(self.key, HostOrder)
        with order.lock:
            called = self.world.meeting("CPU tensors", self.key, self.members, _signature(name, args, call_options))
            work = HostWork(order, called, lambda: run(*args, **kwargs))
            order.waiting.append(work)
        if call_options is None or not call_options.asyncOp:
            work.started()
        return work


class HostOrder:
    """The queue of one group's calls that wait for other members, in call order: gloo must start them in this order.

    `lock` is held from the announcement of a call until it is in the queue.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.waiting: deque[HostWork] = deque()

    def agreed(self, count: int) -> None:
        """Start the first `count` calls of the group: all members have posted them."""
        with self.lock:
            while self.waiting and self.waiting[0].number < count:
                self.waiting.popleft().start()


@contextmanager
def explained(called: Collective) -> Iterator[None]:
    """Re-raise gloo's errors with the call and the control plane's reason, after the report is written."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        why = _why(called, "gloo/transport" in text) if "gloo" in text else None
        if why is None:
            raise
        with called.named():
            raise CollectiveError(f"{why}\n({error})") from error


def _why(called: Collective, is_running: bool) -> str | None:
    """Return the control plane's reason for a failure: which rank is lost or late, or has stopped while gloo was
    running (`is_running`). None if it knows of none."""
    control, entry = called.world.control, called.entry
    group = entry.group
    if (text := control.why_soon(group, SETTLING)) is not None:
        return text
    assert called.number is not None
    try:
        control.wait(group, called.number, 0, time.monotonic() - entry.times[0])
    except CollectiveError as error:
        return str(error)
    if not is_running:
        return None
    control.stuck(group, called.number, called.world.seconds[group], f"{entry.signature} at {entry.line}")
    return control.why_soon(group, ANSWER)


class HostWork(dist.Work):
    """The handle of gloo's work. `begin` starts the work, once all members have posted the call."""

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
        except Exception as error:  # noqa: BLE001 (re-raised by wait)
            self._error = error
        self._begin = None  # frees the tensors that it refers to

    def started(self, seconds: float | None = None) -> Any:
        """Return gloo's work once all members have posted the call.

        Raises CollectiveError if they have not after `seconds` (None: the group's timeout), or if the start failed.
        """
        if self._begin is not None:
            self._called.meet(seconds)
            self._order.agreed(self.number + 1)
        if self._error is not None:
            with explained(self._called):
                raise self._error
        return self._work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the work is done. Raises CollectiveError."""
        work = self.started(timeout.total_seconds() if timeout > NO_TIMEOUT else None)
        with explained(self._called):
            return work.wait(timeout) if timeout > NO_TIMEOUT else work.wait()

    def get_future(self) -> Any:
        """Wait for the members, and return gloo's future, which reports gloo's own errors."""
        return self.started().get_future()

    def result(self) -> Any:
        """Return the tensors of the finished work."""
        return self.started().result()

    def is_completed(self) -> bool:
        """Return whether the work is done or has failed."""
        called = self._called
        late = time.monotonic() - called.entry.times[0] > called.world.seconds[called.entry.group]
        if self._begin is not None and (late or called.world.control.why_broken(called.entry.group)):
            try:
                self.started(0.0)
            except CollectiveError as error:
                self._error, self._begin = error, None
        return self._error is not None or (self._work is not None and self._work.is_completed())

    def is_success(self) -> bool:
        """Return whether the work is done without an error."""
        return self._work is not None and self._work.is_success()

    def exception(self) -> Any:
        """Return the error of the work, or None."""
        return self._error if self._work is None else self._work.exception()

    def synchronize(self) -> None:
        """Wait for the start; no stream has to be synchronized."""
        self.started().synchronize()


def _signature(name: str, args: tuple[Any, ...], call_options: Any) -> str:
    """Return the text that must be equal on all members: `broadcast(root 0) of CPU tensors float32[4]`.

    It has element counts in place of shapes, since gloo compares nothing else.
    """
    root = f"(root {call_options.rootRank})" if hasattr(call_options, "rootRank") else ""
    tensors = _flat(args[EQUAL[name]]) if name in EQUAL else []
    sizes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}[{tensor.numel()}]" for tensor in tensors)
    return f"{name}{root} of CPU tensors {sizes}".strip()


def _flat(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else [leaf for nested in tensors for leaf in _flat(nested)]
