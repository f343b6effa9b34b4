"""Exceptions that hooks of tensors and autograd nodes raise while autograd works on tpu's thread.

torch releases the node's stream before it stores such an exception. For a backend in Python, that calls the backend's
guard for its device type. The call is made while the exception is pending, and fails for that reason; since a
destructor makes it, it ends the process ("terminate called without an active exception").

So the guard here takes the exception away, and backward() raises it when the call returns without one. (torch 2.13;
errors of `torch.autograd.Function` are stored at once, and were never affected.)
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

_taken: dict[object, BaseException] = {}  # by the logical thread, which autograd's thread works for at that moment


class Guard(DeviceGuard):
    """What torch asks for the device type, several times for each node of a backward pass."""

    def type_(self) -> Any:
        """The device type."""
        try:
            # The end of an iteration is where the interpreter looks for an exception: here one that is pending already
            # becomes one that is raised. Without one this costs 20 ns.
            for _ in "":
                pass
        except BaseException as error:  # noqa: BLE001  (raised again by backward())
            _taken[_caller()] = error
        return PRIVATE_USE


class BackwardEngine(AutogradEngine):
    """Autograd's engine as Python calls it."""

    @interruptible  # hooks that run on the main thread are the user's code
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's, and raises what a hook raised."""
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:  # "returned NULL without setting an exception"
            if not _taken:
                raise
            # A thread without a recorder does not know the one that autograd's thread made for it.
            caller = _caller()
            error = _taken.pop(caller) if caller in _taken else _taken.popitem()[1]
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


def _caller() -> object:
    return thread_stash(STASH) if is_stashed(STASH) else None


def install() -> None:
    """Let calls of backward() raise what hooks raised. The guard is given to torch with the backend."""
    Variable._execution_engine = BackwardEngine()
