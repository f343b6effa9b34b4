"""Lists that depend only on the source of lazytpu and on torch, such as the ops with rules: computed once, stored on
disk.

A process that finds them imports no rules and searches no tables of torch before its first compilation, which saves 0.6
s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from lazytpu.aten import registry
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.cache.translation import translators

KIND = "list"


def remembered(name: str, make: Callable[[], list[str]]) -> list[str]:
    """Return the list that `make` returns, from disk if an earlier process stored it under this name. With rules from
    outside lazytpu it is always computed, and not stored."""
    if registry.foreign():
        return make()
    made_for = {fact: translators()[fact] for fact in ("lazytpu source", "torch")}
    key = hashlib.sha256(f"{name} {made_for}".encode()).hexdigest()
    entry = store().get(KIND, key)
    if entry is not None:
        try:
            return _checked(json.loads(entry.payload))
        except ValueError as error:
            store().reject(KIND, key, str(error))
    texts = make()
    store().put(KIND, key, json.dumps(texts, separators=(",", ":")).encode(), {"name": name, "made_for": made_for})
    return texts


def _checked(texts: Any) -> list[str]:
    """Return a list of texts. Raise ValueError for anything else."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it is no list of texts")
    return texts


def recall_rules() -> None:
    """Register the facts of all rules, read from disk if an earlier process stored them."""
    registry.remember(dict(map(_read, remembered("rules", _rules))))


def _rules() -> list[str]:
    """Return a text for each rule: its op, "random" or "-", and its run-time number arguments. A "?" precedes a number
    that becomes a run-time number once it varies."""
    return [
        " ".join(
            [name, "random" if rule.random else "-", *sorted(rule.numbers), *sorted(f"?{n}" for n in rule.specialized)]
        )
        for name, rule in registry.load().items()
    ]


def _read(text: str) -> tuple[str, registry.Facts]:
    """Parse the text of a rule."""
    name, random, *numbers = text.split()
    specialized = frozenset(n[1:] for n in numbers if n[0] == "?")
    return name, registry.Facts(frozenset(n for n in numbers if n[0] != "?"), random == "random", specialized)
