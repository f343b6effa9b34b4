"""Lists that depend on lazytpu's source and on torch alone, such as which ops have rules: made once, kept on disk.

A process that finds them imports no rules, and looks through no tables of torch, before it compiles something: 0.6 s.
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
    """What `make` gives, by that name: from disk when an earlier process stored it. With rules from outside lazytpu it
    is made anew, and not stored."""
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
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it is no list of texts")
    return texts


def recall_rules() -> None:
    """Tell the registry the facts of all rules as an earlier process found them."""
    registry.remember(dict(map(_read, remembered("rules", _rules))))


def _rules() -> list[str]:
    """Each rule as its op, "random" or "-", and the names of the arguments that are run-time numbers, behind a "?" of
    those that become one when they vary."""
    return [
        " ".join(
            [name, "random" if rule.random else "-", *sorted(rule.numbers), *sorted(f"?{n}" for n in rule.specialized)]
        )
        for name, rule in registry.load().items()
    ]


def _read(text: str) -> tuple[str, registry.Facts]:
    name, random, *numbers = text.split()
    specialized = frozenset(n[1:] for n in numbers if n[0] == "?")
    return name, registry.Facts(frozenset(n for n in numbers if n[0] != "?"), random == "random", specialized)
