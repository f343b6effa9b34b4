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
    rules = sys.modules.get(private.DYNAMO_RULES)
    if rules is not None:
        _allow(rules, function)


def allow_all(rules: Any) -> None:
    """Tell dynamo of the functions so far. `rules` is its module of that kind, which was just imported."""
    for function in list(_opaque):
        _allow(rules, function)


def _allow(rules: Any, function: Any) -> None:
    ids = (rules._allowed_callable_ids, rules._nonstrict_trace_callable_ids)
    for known in ids:
        known.add(id(function))
    weakref.finalize(function, lambda number: [known.remove(number) for known in ids], id(function))
