"""Functions whose calls Dynamo puts into its graphs without tracing them."""

from __future__ import annotations

import sys
import weakref
from typing import Any
from weakref import WeakSet

from lazytpu.frontend import torch_private as private

_opaque: WeakSet[Any] = WeakSet()
"Callables that Dynamo does not trace."


def make_opaque(function: Any) -> None:
    """Let Dynamo put calls of a function into its graphs without tracing them.

    Ops that the function records while a graph is traced further are part of that graph. Arguments and results may be
    tensors, settings, and tuples, lists and dicts of these.
    """
    _opaque.add(function)
    if private.DYNAMO_RULES in sys.modules:
        _allow(function)


def allow_all() -> None:
    """Register the functions so far with Dynamo, whose rules were just imported."""
    for function in list(_opaque):
        _allow(function)


def _allow(function: Any) -> None:
    ids = [place.get() for place in private.OPAQUE]
    for id_set in ids:
        id_set.add(id(function))
    weakref.finalize(function, lambda number: [id_set.remove(number) for id_set in ids], id(function))
