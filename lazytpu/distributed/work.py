"""What collectives return: handles on work that is done as far as the caller is concerned, or that waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.futures import Future

from lazytpu.frontend.torch_private import CallbackWork, work_of

NO_TIMEOUT = timedelta()


def recorded(result: Any) -> Any:
    """The handle of collectives that are recorded: its `wait()` has nothing to wait for, since whoever reads `result`
    (tensors) does that."""
    future: Future[Any] = Future()
    future.set_result(result)
    return work_of(future)


def on_wait(work: Any, then: Callable[[], None]) -> Any:
    """The handle of a message, after which `then` runs, at the first `wait()`."""
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
    """A handle that also knows who sent: `dist.recv` without a source asks for it."""

    def __init__(self, wait: Callable[[Any], bool], work: Any):
        super().__init__(wait)
        self.work = work

    def _source_rank(self) -> int:
        return self.work._source_rank()


def all_of(works: list[Any], result: list[torch.Tensor]) -> Any:
    """One handle of several."""
    if not works:
        return recorded(result)

    def wait(timeout: Any) -> bool:
        for work in works:
            work.wait()
        return True

    return CallbackWork(wait)
