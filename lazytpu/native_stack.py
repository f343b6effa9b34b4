"""The C functions that the calling thread is in, by name, according to glibc."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

_DEPTH = 64


class _Symbol(ctypes.Structure):
    """What dladdr returns for an address (Dl_info)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def functions() -> Iterator[str]:
    """Names of the C functions, innermost first, at most 64; "" for one that its library does not export. Empty where
    the C library cannot tell."""
    c: Any = ctypes.CDLL(None)
    if not hasattr(c, "backtrace") or not hasattr(c, "dladdr"):
        return
    addresses = (ctypes.c_void_p * _DEPTH)()
    symbol = _Symbol()
    for i in range(c.backtrace(addresses, _DEPTH)):
        known = c.dladdr(ctypes.c_void_p(addresses[i]), ctypes.byref(symbol))
        yield symbol.name.decode() if known and symbol.name else ""
