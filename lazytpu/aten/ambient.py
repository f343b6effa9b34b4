"""The global state of torch that a record was made under, for what imports it: torch may be set otherwise by then.

Rules ask here for the default dtype, never torch; torch's decompositions ask torch, which is set for them as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from lazytpu.aten import dtypes
from lazytpu.trace.settings import DEFAULT_DTYPE, DETERMINISM

_COMPLEX_OF = {"f32": "c64", "f64": "c128", "bf16": "c64"}


class _Recorded(threading.local):
    settings: Mapping[str, str] | None = None


_recorded = _Recorded()


@contextmanager
def under(settings: Mapping[str, str]) -> Iterator[None]:
    """Import one record inside, by its settings."""
    before, _recorded.settings = _recorded.settings, settings
    try:
        yield
    finally:
        _recorded.settings = before


def default_float() -> str:
    """The dtype of a Python float and of a float op's result on integers. Raises AssertionError in the import of a
    record that does not depend on it: its key would not tell programs of two defaults apart."""
    if _recorded.settings is None:
        return dtypes.name(torch.get_default_dtype())
    dtype = _recorded.settings.get(DEFAULT_DTYPE)
    assert dtype is not None, "its rule asks for the default dtype, which is not part of its key"
    return dtypes.name(_dtype(dtype))


def default_complex() -> str:
    """The dtype of a Python complex number."""
    default = default_float()
    if default not in _COMPLEX_OF:
        raise NotImplementedError(f"complex numbers of the default dtype {default} have no dtype on 'tpu'")
    return _COMPLEX_OF[default]


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))


@contextmanager
def torch_as_recorded() -> Iterator[None]:
    """Run one of torch's decompositions inside. Where it asks for a switch of its record that was set otherwise since,
    torch is set back meanwhile. Whether an algorithm is deterministic was asked when it was recorded."""
    recorded = _recorded.settings or {}
    now, mode = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
    dtype = _dtype(recorded.get(DEFAULT_DTYPE, str(now)))
    asked = DETERMINISM in recorded and mode != 0
    try:
        if dtype is not now:
            torch.set_default_dtype(dtype)
        if asked:
            torch.set_deterministic_debug_mode(0)
        yield
    finally:
        if dtype is not now:
            torch.set_default_dtype(now)
        if asked:
            torch.set_deterministic_debug_mode(mode)
