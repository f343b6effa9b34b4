"""Lists the C functions on the stack of the calling thread, by name, from glibc."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

_DEPTH = 64  # frames: deeper than the native part of any stack seen


class _Symbol(ctypes.Structure):
    """The result of dladdr for an address (Dl_info)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def functions() -> Iterator[str]:
    """Yield the names of the C functions, innermost first, at most 64; "" for a function that its library does not
    export. Yields none if the C library lacks `backtrace` or `dladdr`."""
    c: Any = ctypes.CDLL(None)
    if not hasattr(c, "backtrace") or not hasattr(c, "dladdr"):
        return
    addresses = (ctypes.c_void_p * _DEPTH)()
    symbol = _Symbol()
    for i in range(c.backtrace(addresses, _DEPTH)):
        resolved = c.dladdr(ctypes.c_void_p(addresses[i]), ctypes.byref(symbol))
        yield symbol.name.decode() if resolved and symbol.name else ""
