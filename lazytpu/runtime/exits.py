"""Process exit while threads still wait for XLA, which cannot be stopped: these threads are abandoned.

Otherwise they would crash the process. A thread that waits for XLA requests the interpreter's lock five times a second.
During finalization, CPython up to 3.13 answers by unwinding the thread's stack. C++ frames that must not be unwound
then call std::terminate: "terminate called ...", and the exit status is that of a crash.
"""

from __future__ import annotations

import ctypes
from typing import Any


def abandon_threads() -> bool:
    """Let the process end with its current exit status although threads wait for XLA. Call it from an atexit function,
    as the last action of lazytpu. Returns False without any effect where the C libraries are not those of Linux.

    From then on, std::terminate only stops its thread. Once Python has finalized itself, the process ends before C++
    destroys objects that XLA's threads still use. glibc's on_exit passes the exit status to its function, here `_exit`
    itself, since no Python code can run by then.
    """
    c: Any = ctypes.CDLL(None)
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        pause, leave, on_exit = c.pause, c._exit, c.on_exit
    except (OSError, AttributeError):
        return False
    set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
    on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    set_terminate(ctypes.cast(pause, ctypes.c_void_p))
    on_exit(ctypes.cast(leave, ctypes.c_void_p), None)
    return True
