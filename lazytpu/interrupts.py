"""Signals: a handler that raises, such as that of Ctrl-C, never raises in the middle of lazytpu's own work.

Python calls a signal's handler on the main thread between any two instructions, and its exception surfaces there:
between a program that has taken a parameter's memory and the line that stores its result, or in a call by a C++
destructor, which ends the process. Code cannot be made safe against this everywhere.

So handlers are wrapped. One that is called while lazytpu works is deferred until control is back in the caller's code,
and called there, at the next instruction. Functions that wait for long are `interruptible`: there it is called at once,
and their callers handle its exception. Recording pays nothing for this: the wrapper looks at the stack of frames, and
only when a signal arrives.

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

# Files of code that must not be interrupted: the package, and the kernels that are generated in it.
_OURS = (os.path.dirname(__file__) + os.sep, "<kernel of ")
# Python drops exceptions of these, and the interrupt would be lost: callbacks of weak references, and destructors.
_DROPPED = {("weakref.py", "remove"), ("_weakrefset.py", "_remove"), ("weak.py", "remove")}

_signal: Any = sys.modules["_signal"]  # the C module behind `signal`

LOOKS = 1.0  # seconds between looks for signals, in a wait

_interruptible: set[CodeType] = set()
_finished: list[str] = []
_installed = False


class Interrupted(BaseException):
    """A wait was interrupted before anything had happened; its cause is the exception of the signal's handler."""


class InterruptedAfter(BaseException):
    """A wait was interrupted after all had happened; its cause is the exception of the signal's handler."""


def interruptible(function: F) -> F:
    """Marks a function in which a handler may raise: it waits, or calls the user's code, and its callers handle the
    exception."""
    _interruptible.add(function.__code__)
    return function


@interruptible
def wait_for(changed: threading.Condition, condition: Callable[[], object], seconds: float | None = None) -> bool:
    """As `changed.wait_for(condition, seconds)`, in which a handler may raise. CPython does not see a signal that comes
    just before a lock blocks it, so this never blocks for long."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    while not changed.wait_for(condition, max(0.0, min(LOOKS, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


def finished_first(folder: str) -> None:
    """Defers handlers while functions of files in `folder`, and the functions they call, run."""
    _finished.append(folder + os.sep)


class Handler:
    """What Python calls in place of the user's `handler`: it calls that at once, or when lazytpu is done."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Call the handler here if the interrupted `frame` allows it, else defer it."""
        place = _place(frame, number in _waiting)
        if place is None or (place is frame and not _is_seen_in_passing()):
            _waiting.pop(number, None)
            _call(self.handler, number, frame)
        else:
            _put_off(self.handler, number, place)


@interruptible
def _call(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
    handler(number, frame)


def _place(frame: FrameType | None, again: bool) -> FrameType | None:
    """The innermost frame, from `frame` on outwards, in which a handler may raise, so that its exception leaves no
    frame of lazytpu except interruptible ones, and, unless the signal came `again`, no frame that is to be finished
    first. None when there is no such frame."""
    unfinished = () if again else tuple(_finished)
    place = None
    while frame is not None:
        code = frame.f_code
        if code in _interruptible:
            return place or frame
        if _is_atomic(code) or (unfinished and code.co_filename.startswith(unfinished)):
            place = None
        elif place is None:
            place = frame
        frame = frame.f_back
    return place


def _is_atomic(code: CodeType) -> bool:
    if code.co_filename.startswith(_OURS) or code.co_name == "__del__":
        return True
    if (os.path.basename(code.co_filename), code.co_name) in _DROPPED:
        return True
    return any(getattr(callback, "__code__", None) is code for callback in gc.callbacks)


def _is_seen_in_passing() -> bool:
    """Whether the interpreter checked for signals while C code was asking it for the text of an object, as str() does.

    torch does so in C++ functions that must not raise: a signal there would end the process ("terminate called"), by
    pybind11's look-up of the method that gives the type of the device (torch 2.13). Python frames do not show it.
    """
    names = functions()
    if not any(name.endswith("PyErr_CheckSignalsTstate") for name in names):
        return False
    caller = next((name for name in names if name != "PyErr_CheckSignals"), "")
    return caller in ("PyObject_Str", "PyObject_Repr")


# -- putting off

_waiting: dict[int, Callable[[int, FrameType | None], Any]] = {}


def _put_off(handler: Callable[[int, FrameType | None], Any], number: int, place: FrameType) -> None:
    """Call the handler when the frame `place` continues: the interpreter's tracing reports that, as it does for a
    debugger. Until then the functions that are called run slower."""
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
    """No new frame is traced."""


def _call_waiting(frame: FrameType) -> None:
    """Call all of them: tracing ends when one raises, and could not bring the others back."""
    if _waiting:
        number, handler = _waiting.popitem()
        try:
            _call(handler, number, frame)
        finally:
            _call_waiting(frame)


# -- handlers


class Signals:
    """Replaces the C module behind the standard library's module `signal`, so that its functions wrap and unwrap
    handlers wherever a program has imported them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        """Set a handler; returns the previous one."""
        return _unwrapped(_signal.signal(number, Handler(handler) if _raises(handler) else handler))

    def getsignal(self, number: int) -> Any:
        """The handler as it was set."""
        return _unwrapped(_signal.getsignal(number))


def install() -> None:
    """From now on, wrap the handlers of this process: those that are set already, and those that will be.

    Called at the first use of the device. Only the main thread may set handlers: a call on another thread does nothing
    yet.
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
    """Whether it is a Python function that may raise. asyncio's own does nothing; the signal reaches asyncio in another
    way, and must not arrive twice."""
    return callable(handler) and not isinstance(handler, Handler) and not _is_asyncio(handler)


def _is_asyncio(handler: Any) -> bool:
    return getattr(handler, "__module__", None) == "asyncio.unix_events"


def _unwrapped(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Handler) else handler
