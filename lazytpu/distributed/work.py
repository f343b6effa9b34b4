"""The handles that collectives return."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from lazytpu.distributed.control import CollectiveError
from lazytpu.distributed.flight import Entry
from lazytpu.distributed.recorded import cut_collectives
from lazytpu.distributed.watch import is_done
from lazytpu.distributed.world import World
from lazytpu.frontend.tensors import recorder
from lazytpu.frontend.torch_private import CallbackWork
from lazytpu.interrupts import interruptible

NO_TIMEOUT = timedelta()
PAUSE = 0.001  # seconds between two polls for the end of a collective


class Recorded(dist.Work):
    """The handle of recorded collectives. `entry` is the last of them, and `result` has their tensors."""

    def __init__(self, result: Any, entry: Entry | None = None, world: World | None = None):
        super().__init__()
        self._future: Future[Any] = Future()
        self._future.set_result(result)
        self._entry = entry
        self._world = world
        # in strict mode, the cuts that this handle has to wait for
        self._cuts = 0 if world is None else world.launcher.count

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait as far as the caller can observe it.

        - Without a `timeout`, return at once: reading a result waits for it. In strict mode, wait for the launch, and
          raise the error of a failed cut.
        - With a `timeout`, wait until the collectives have run. Raises their error, and RuntimeError after the timeout,
          as gloo does.
        """
        self._will_wait()
        if recorder().platform is not None:  # a rehearsal launches nothing
            return True
        if timeout > NO_TIMEOUT and self._world is not None and self._entry is not None:
            _wait(self._world, self._entry, timeout.total_seconds())
        elif self._world is not None and self._entry is not None and recorder().eager:
            self._world.launcher.drain(before=self._cuts)
            self._world.raise_failed()
        return True

    def get_future(self) -> Future[Any]:
        """Return a completed future, and count this as a wait: waiting for a future cannot be observed."""
        self._will_wait()
        return self._future

    def _will_wait(self) -> None:
        if self._world is not None and self._entry is not None:
            self._world.flight.wait_for(self._entry)

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Any:
        return self._future.value()


def _wait(world: World, entry: Entry, seconds: float) -> None:
    """Wait at most `seconds` until a collective has run. Raises its failure, or RuntimeError after that time."""
    cut_collectives()
    end = time.monotonic() + seconds
    while not is_done(entry):
        if time.monotonic() > end:
            raise RuntimeError("Operation timed out!")
        _pause()
    if entry.failed:
        world.raise_untold()
        why = world.control.why_broken(entry.group) or "it has failed before"
        raise CollectiveError(f"{entry.signature or 'a collective'} at {entry.line}: {why}")


@interruptible
def _pause() -> None:
    time.sleep(PAUSE)


def on_wait(work: Any, then: Callable[[], None]) -> Any:
    """Return the handle of a message. `then` runs once, at the end of the first `wait()`."""
    done = False

    def wait(timeout: Any) -> bool:
        nonlocal done
        if not done:
            work.wait(timeout)
            then()
            done = True
        return True

    return _OnWait(wait, work)


class _OnWait(CallbackWork):
    """A handle that also has the sender's rank, which `dist.recv` without a source needs."""

    def __init__(self, wait: Callable[[Any], bool], work: Any):
        super().__init__(wait)
        self.work = work

    def _source_rank(self) -> int:
        return self.work._source_rank()


def all_of(works: list[Any], result: list[torch.Tensor]) -> Any:
    """Combine several handles into one."""
    if not works:
        return Recorded(result)

    def wait(timeout: Any) -> bool:
        end = time.monotonic() + timeout.total_seconds()
        for work in works:
            if timeout > NO_TIMEOUT:
                work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
            else:
                work.wait()
        return True

    return CallbackWork(wait)
