"""Entries in progress: the locks that processes hold on names of missing entries, and the notes in them."""

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
    """An entry in progress since `since` (seconds since 1970). `by` names its process, "process 4711 on host".

    `about` is the note of that process: the entry's "name". For a program in a helper process it also has "ops", "for"
    (the number of the requesting process) and "estimate" (the expected seconds), where known.
    """

    kind: str
    key: str
    by: str
    since: float
    about: Mapping[str, Any]


def note(about: Mapping[str, Any]) -> str:
    """Return the note in the file of a lock. Raises TypeError when `about` is not JSON."""
    return json.dumps({"since": time.time(), "about": dict(about)})


def listed(root: Path) -> list[Making]:
    """Return the entries in progress in a cache folder, oldest first. Locks of dead processes are skipped;
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
    except FileNotFoundError:  # complete by now
        return None
    with open(opened, encoding="utf-8") as file:
        if not is_held(opened):
            return None
        by, _, note_text = file.read().partition("\n")
    try:
        fields = json.loads(note_text)
        return Making(name[2], name[1], by, float(fields["since"]), dict(fields["about"]))
    except (ValueError, KeyError, TypeError):  # the holder has not written its note yet
        return None
