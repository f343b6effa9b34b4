"""Functions that dynamo puts into its graphs as they are."""

from __future__ import annotations

import sys
import weakref
from typing import Any
from weakref import WeakSet

from lazytpu.frontend import torch_private as private

_opaque: WeakSet[Any] = WeakSet()
"Callables that dynamo does not look into."


def make_opaque(function: Any) -> None:
    """Let dynamo put calls of a function into its graphs as they are. Ops that it records while a graph is traced
    further are in that graph; arguments and results may be tensors, settings, and tuples, lists and dicts of them."""
    _opaque.add(function)
    if private.DYNAMO_RULES in sys.modules:
        _allow(function)


def allow_all() -> None:
    """Tell dynamo, whose rules were just imported, of the functions so far."""
    for function in list(_opaque):
        _allow(function)


def _allow(function: Any) -> None:
    ids = [place.get() for place in private.OPAQUE]
    for known in ids:
        known.add(id(function))
    weakref.finalize(function, lambda number: [known.remove(number) for known in ids], id(function))
