"""The store of a job, of which nothing waits for ever: torch's client has no timeout for a server that has stopped, as
with the launcher that it is part of."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from lazytpu.interrupts import interruptible

SECONDS = 20.0  # for one answer, with all that is waited for before


class CommonStore:
    """The methods of a torch store that is nobody else's. A thread calls them, one at a time. Each raises RuntimeError
    when there is no answer; after one that did not come in time the store is not asked again."""

    def __init__(self, common: Any, seconds: float = SECONDS):
        common.set_timeout(timedelta(seconds=seconds / 2))
        self._store = common
        self._seconds = seconds
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
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
        self._asked.put((answer, call))
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
            answered(*self._asked.get())


def answered(answer: Future[Any], call: Callable[[], Any]) -> None:
    """Note what a call gives, or raises."""
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001  (whoever asked raises it)
        answer.set_exception(error)
