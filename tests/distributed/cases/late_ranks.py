"""A rank that is late, and a rank that waits for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import lazytpu
from lazytpu.engine.cutting.launcher import Launcher

_names = count()


def new_key() -> str:
    """Return a key of the store, equal on both ranks."""
    return f"launching/{next(_names)}"


def after(late: Callable[[], Any], go_on: Callable[[], Any]) -> None:
    """Run `late` on rank 1 only after rank 0 has run it and continued, which would deadlock if the main thread launched
    it."""
    store, name = _get_default_store(), new_key()
    if dist.get_rank() == 0:
        late()
        go_on()
        store.set(name, "")
    else:
        store.wait([name])
        late()
        go_on()


def compiled() -> Any:
    """Compile programs of one size at the cut, so that other cuts do not wait for a compilation on the thread."""
    return lazytpu.options(background_compile=0.0, buckets="off")


@contextmanager
def while_it_waits(then: Callable[[], Any]) -> Iterator[None]:
    """Call `then` on a thread once the main thread waits for a launch."""
    main = threading.main_thread().ident
    assert main is not None

    def call() -> None:
        while not _waits(sys._current_frames()[main]):
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=call)
    thread.start()
    yield
    thread.join()


def _waits(frame: Any) -> bool:
    while frame is not None and frame.f_code is not Launcher._wait.__code__:
        frame = frame.f_back
    return frame is not None
