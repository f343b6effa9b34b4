"""Forked processes: XLA's threads do not survive a fork, so the child of a process that used the device must not use
it.

Without this check, a child would wait forever at its first read. It gets the same error as from `torch.cuda` instead.
It may do anything else: DataLoader workers run on the CPU.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NoReturn

from lazytpu.frontend import activation
from lazytpu.frontend.device.generators import renew_lock

FORKED = False


class _Refusing:
    """Replaces the engine, and its device, in a forked child; every method raises."""

    @property
    def device(self) -> _Refusing:
        return self

    def __getattr__(self, name: str) -> Any:
        return refuse


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise the error of a forked child."""
    raise RuntimeError(
        "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the 'spawn' "
        "start method (torch.multiprocessing.set_start_method('spawn'))."
    )


def _in_child() -> None:
    global FORKED
    renew_lock()
    if activation.started_device() is None:
        return
    FORKED = True
    from lazytpu.frontend.tensors import recorders

    refusing: Any = _Refusing()
    activation.install(refusing)
    for recorder in recorders():
        recorder.cut_trace = refuse
        recorder.lock, recorder.cut_lock = threading.RLock(), threading.RLock()  # another thread may have held them


def install() -> None:
    """Disable the device in processes forked from now on."""
    os.register_at_fork(after_in_child=_in_child)
