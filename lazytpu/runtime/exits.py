"""How the process ends while threads still wait for XLA, which cannot be stopped: they are left behind.

Left alone, they would take the process with them. A thread that waits for XLA asks for the interpreter's lock five
times a second; once the interpreter is being finalized, CPython up to 3.13 answers by unwinding the thread's stack, and
C++ frames that must not be unwound call std::terminate: "terminate called ...", and the exit status is that of a crash.
"""

from __future__ import annotations

import ctypes
from typing import Any


def abandon_threads() -> bool:
    """Let the process end, with the exit status it is about to have, although threads wait for XLA. Call it from an
    atexit function, as the last thing that lazytpu does. Returns False, and nothing is changed, where the C libraries
    are not those of Linux.

    From then on std::terminate stops its thread, and nothing else; and once Python has finalized itself the process
    ends, before C++ destroys what XLA's threads still use. glibc's on_exit hands the exit status to the function it
    calls, here `_exit` itself, since no Python can run by then.
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
