"""What is being made: the locks that processes hold on names of entries that are not there yet, and what they say."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazytpu.runtime.cache.folder import LOCKS
from lazytpu.runtime.cache.locks import is_held

_NAME = re.compile(r"([0-9a-f]+)\.([a-z]+)")


@dataclass(frozen=True, slots=True)
class Making:
    """An entry in the making, since `since` (seconds since 1970). `by` says who makes it, "process 4711 on host".

    `about` has what that one says of it: its "name"; of a program in a helper process also its "ops", "for", the number
    of the process that asked, and "estimate", the seconds that it will take, if they are known.
    """

    kind: str
    key: str
    by: str
    since: float
    about: Mapping[str, Any]


def note(about: Mapping[str, Any]) -> str:
    """What the file of a lock says besides who holds it. Raises TypeError when `about` is not JSON."""
    return json.dumps({"since": time.time(), "about": dict(about)})


def listed(root: Path) -> list[Making]:
    """What is in the making in a cache folder, the one that began first first. The locks of the dead are passed over:
    `ledger.sweep` removes them."""
    try:
        paths = list((root / LOCKS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(filter(None, map(_read, paths)), key=lambda making: making.since)


def _read(path: Path) -> Making | None:
    name = _NAME.fullmatch(path.name)
    if name is None:
        return None
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:  # it is made by now
        return None
    with open(opened, encoding="utf-8") as file:
        if not is_held(opened):
            return None
        by, _, said = file.read().partition("\n")
    try:
        fields = json.loads(said)
        return Making(name[2], name[1], by, float(fields["since"]), dict(fields["about"]))
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not written yet
        return None
