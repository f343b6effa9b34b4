"""Defers signal handlers that raise, such as Python's handler of Ctrl-C, while lazytpu works.

Python calls a signal's handler on the main thread between any two instructions, and the handler's exception surfaces
there. That may be between a program's launch, which takes a parameter's memory, and the line that stores its result. It
may also be in a call by a C++ destructor, where an exception ends the process. Code cannot be made safe against this
everywhere.

So handlers are wrapped. A handler that is called while lazytpu works is deferred until control is back in the caller's
code, and called there, at the next instruction. Functions that wait for long are `interruptible`: there the handler is
called at once, and their callers handle its exception. Recording pays nothing for this: the wrapper walks the stack of
frames, and only when a signal arrives.

Code of other packages that leaves state half updated, such as an optimizer between two of its ops, is `finished_first`
in the same way, until the signal arrives a second time.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeGuard, TypeVar

from lazytpu.native_stack import functions

F = TypeVar("F", bound=Callable[..., Any])

# Files of code that must not be interrupted: the package, and its generated kernels.
_OURS = (os.path.dirname(__file__) + os.sep, "<kernel of ")
# Python drops exceptions in callbacks of weak references and in destructors, so the interrupt would be lost.
_DROPPED = {("weakref.py", "remove"), ("_weakrefset.py", "_remove"), ("weak.py", "remove")}

_signal: Any = sys.modules["_signal"]  # the C module behind `signal`

LOOKS = 1.0  # seconds between checks for signals, in a wait

_interruptible: set[CodeType] = set()
_finished: list[str] = []
_installed = False


class Interrupted(BaseException):
    """A wait was interrupted before anything happened; its cause is the exception of the signal's handler."""


class InterruptedAfter(BaseException):
    """A wait was interrupted after everything happened; its cause is the exception of the signal's handler."""


def interruptible(function: F) -> F:
    """Mark a function in which a handler may raise: it waits or calls the user's code, and its callers handle the
    exception."""
    _interruptible.add(function.__code__)
    return function


@interruptible
def wait_for(changed: threading.Condition, condition: Callable[[], object], seconds: float | None = None) -> bool:
    """Wait as `changed.wait_for(condition, seconds)`, in which a handler may raise. CPython misses a signal that
    arrives just before a lock blocks, so this never blocks for more than `LOOKS` seconds."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    while not changed.wait_for(condition, max(0.0, min(LOOKS, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


def finished_first(folder: str) -> None:
    """Defer handlers while functions of files in `folder`, or functions that they call, run."""
    _finished.append(folder + os.sep)


class Handler:
    """Replaces the user's `handler`: Python calls this object, which calls the handler at once, or after lazytpu's
    work."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Call the handler here if the interrupted `frame` allows it, else defer it."""
        target = _place(frame, number in _waiting)
        if target is None or (target is frame and not _is_seen_in_passing()):
            _waiting.pop(number, None)
            _call(self.handler, number, frame)
        else:
            _put_off(self.handler, number, target)


@interruptible
def _call(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
    handler(number, frame)


def _place(frame: FrameType | None, again: bool) -> FrameType | None:
    """Return the innermost frame, from `frame` outwards, in which a handler may raise.

    Its exception then leaves no frame of lazytpu except interruptible ones. Unless the signal came `again`, it leaves
    no frame that is `finished_first` either. Return None if there is no such frame.
    """
    unfinished = () if again else tuple(_finished)
    candidate = None
    while frame is not None:
        code = frame.f_code
        if code in _interruptible:
            return candidate or frame
        if _is_atomic(code) or (unfinished and code.co_filename.startswith(unfinished)):
            candidate = None
        elif candidate is None:
            candidate = frame
        frame = frame.f_back
    return candidate


def _is_atomic(code: CodeType) -> bool:
    if code.co_filename.startswith(_OURS) or code.co_name == "__del__":
        return True
    if (os.path.basename(code.co_filename), code.co_name) in _DROPPED:
        return True
    return any(getattr(callback, "__code__", None) is code for callback in gc.callbacks)


def _is_seen_in_passing() -> bool:
    """Whether the interpreter checked for signals while C code computed the text of an object, as str() does.

    torch does so in C++ functions that must not raise, where a signal would end the process ("terminate called"):
    pybind11 looks up the method that returns the type of the device (torch 2.13). Python frames do not show this.
    """
    names = functions()
    if not any(name.endswith("PyErr_CheckSignalsTstate") for name in names):
        return False
    caller = next((name for name in names if name != "PyErr_CheckSignals"), "")
    return caller in ("PyObject_Str", "PyObject_Repr")


# -- deferring

_waiting: dict[int, Callable[[int, FrameType | None], Any]] = {}


def _put_off(handler: Callable[[int, FrameType | None], Any], number: int, place: FrameType) -> None:
    """Call the handler when the frame `place` continues: the interpreter's tracing reports that, as to a debugger.
    Until then, calls of functions are slower."""
    _waiting[number] = handler
    tracer, opcodes = place.f_trace, place.f_trace_opcodes

    def goes_on(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace, frame.f_trace_opcodes = tracer, opcodes
        if sys.gettrace() is _trace_nothing:
            sys.settrace(None)
        _call_waiting(frame)
        return None if tracer is None else tracer(frame, event, arg)

    place.f_trace, place.f_trace_opcodes = goes_on, True
    if sys.gettrace() is None:
        sys.settrace(_trace_nothing)


def _trace_nothing(frame: FrameType, event: str, arg: Any) -> None:
    """A tracer that traces no new frame."""


def _call_waiting(frame: FrameType) -> None:
    """Call all deferred handlers. Tracing ends when one raises, so the others are called before its exception
    propagates."""
    if _waiting:
        number, handler = _waiting.popitem()
        try:
            _call(handler, number, frame)
        finally:
            _call_waiting(frame)


# -- handlers


class Signals:
    """Replaces the C module behind the standard library's module `signal`, so that its functions wrap and unwrap
    handlers wherever a program imported them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        """Set a handler, and return the previous one."""
        return _unwrapped(_signal.signal(number, Handler(handler) if _raises(handler) else handler))

    def getsignal(self, number: int) -> Any:
        """Return the handler as it was set."""
        return _unwrapped(_signal.getsignal(number))


def install() -> None:
    """Wrap the handlers of this process from now on: the handlers that are set already, and later ones.

    The first use of the device calls this. Only the main thread may set handlers: on another thread, the call does
    nothing.
    """
    global _installed
    if _installed or threading.current_thread() is not threading.main_thread():
        return
    _installed = True
    signal.__dict__["_signal"] = Signals()
    for number in signal.valid_signals():
        handler = _signal.getsignal(number)
        if _raises(handler):
            _signal.signal(number, Handler(handler))


def _raises(handler: Any) -> TypeGuard[Callable[[int, FrameType | None], Any]]:
    """Whether this is a Python function that may raise. asyncio's own handler does nothing: the signal reaches asyncio
    in another way, and must not arrive twice."""
    return callable(handler) and not isinstance(handler, Handler) and not _is_asyncio(handler)


def _is_asyncio(handler: Any) -> bool:
    return getattr(handler, "__module__", None) == "asyncio.unix_events"


def _unwrapped(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Handler) else handler
