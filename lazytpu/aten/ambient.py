"""torch's global settings at the time an op was recorded. By the time it is imported, they may have changed.

Rules read the default dtype here, never from torch. torch's decompositions read it from torch, which is set back for
them.
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
    """While active, rules see `settings`, the torch settings of the record being imported."""
    before, _recorded.settings = _recorded.settings, settings
    try:
        yield
    finally:
        _recorded.settings = before


def default_float() -> str:
    """The dtype of a Python float, and of the result of a float op on integers.

    Raises AssertionError if the record being imported does not carry the default dtype: it is then not part of the
    trace key, and programs for two defaults would be confused.
    """
    if _recorded.settings is None:
        return dtypes.name(torch.get_default_dtype())
    dtype = _recorded.settings.get(DEFAULT_DTYPE)
    assert dtype is not None, "its rule reads the default dtype, which is not part of its key"
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
    """While active, torch has the settings of the record, for one of its decompositions to read.

    Determinism is switched off: whether an algorithm is deterministic was checked when the op was recorded.
    """
    recorded = _recorded.settings or {}
    now, debug_mode = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
    dtype = _dtype(recorded.get(DEFAULT_DTYPE, str(now)))
    relax = DETERMINISM in recorded and debug_mode != 0
    try:
        if dtype is not now:
            torch.set_default_dtype(dtype)
        if relax:
            torch.set_deterministic_debug_mode(0)
        yield
    finally:
        if dtype is not now:
            torch.set_default_dtype(now)
        if relax:
            torch.set_deterministic_debug_mode(debug_mode)
