"""Exceptions of tensor and autograd-node hooks that run while autograd works on tpu's thread.

Before torch stores such an exception, it releases the node's stream. For a backend in Python, that calls the backend's
device guard. The call fails because an exception is pending. Since a destructor makes it, the process is terminated
("terminate called without an active exception").

So this guard removes the pending exception, and backward() raises it when the native call returns without one. (torch
2.13; errors of `torch.autograd.Function` are stored at once, and are not affected.)
"""

from __future__ import annotations

from typing import Any

from lazytpu.frontend.tensors import STASH
from lazytpu.frontend.torch_private import (
    PRIVATE_USE,
    AutogradEngine,
    DeviceGuard,
    Variable,
    is_stashed,
    thread_stash,
)
from lazytpu.interrupts import interruptible

_taken: dict[object, BaseException] = {}  # keyed by the logical thread for which autograd's thread works at that moment


class Guard(DeviceGuard):
    """The guard of the device type, which torch queries several times for each node of a backward pass."""

    def type_(self) -> Any:
        """Return the device type, after removing a pending exception."""
        try:
            # At the end of an iteration the interpreter checks for an exception, which raises a pending one here.
            # Otherwise this takes 20 ns.
            for _ in "":
                pass
        except BaseException as error:  # noqa: BLE001 (re-raised by backward())
            _taken[_caller()] = error
        return PRIVATE_USE


class BackwardEngine(AutogradEngine):
    """Autograd's engine, as Python calls it."""

    @interruptible  # hooks on the main thread are user code
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass as torch does, and raise the exceptions of its hooks."""
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:  # "returned NULL without setting an exception"
            if not _taken:
                raise
            # A thread without a recorder does not know the recorder that autograd's thread created for it.
            caller = _caller()
            error = _taken.pop(caller) if caller in _taken else _taken.popitem()[1]
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


def _caller() -> object:
    return thread_stash(STASH) if is_stashed(STASH) else None


def install() -> None:
    """Let backward() raise its hooks' exceptions. The guard is registered with the backend."""
    Variable._execution_engine = BackwardEngine()
