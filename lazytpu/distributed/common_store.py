"""A torch store with a timeout for every call. torch's own client waits forever for a server that has stopped, for
example because the launcher that hosts it was stopped."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from lazytpu.interrupts import interruptible

SECONDS = 20.0  # the limit for one answer, queueing included


class CommonStore:
    """A wrapper of the torch store `common`, of which it must be the only user.

    One thread makes the calls, one at a time. A call raises RuntimeError when no answer comes in time; all later calls
    then fail at once.
    """

    def __init__(self, torch_store: Any, seconds: float = SECONDS):
        torch_store.set_timeout(timedelta(seconds=seconds / 2))
        self._store = torch_store
        self._seconds = seconds
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_silent = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *arguments: self._answer(lambda: method(*arguments))

    def _answer(self, call: Callable[[], Any]) -> Any:
        if self._is_silent:
            raise RuntimeError("the store of this job does not answer")
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lazytpu store", daemon=True)
                self._thread.start()
        answer = Future[Any]()
        self._calls.put((answer, call))
        return self._waited(answer)

    @interruptible
    def _waited(self, answer: Future[Any]) -> Any:
        try:
            return answer.result(self._seconds)
        except TimeoutError as error:
            self._is_silent = True
            raise RuntimeError(f"the store of this job does not answer for {self._seconds:g} s") from error

    def _work(self) -> None:
        while True:
            answered(*self._calls.get())


def answered(answer: Future[Any], call: Callable[[], Any]) -> None:
    """Resolve `answer` with the result of `call`, or with the exception that it raises."""
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 (re-raised by whoever reads the future)
        answer.set_exception(error)
