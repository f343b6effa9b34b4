"""The source lines of records as locations of the module."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr

from lazytpu.ir.location import place


def location_of(line: Any, folder: str) -> LocationAttr:
    """The location of a record's source line (see `lazytpu.ir.location.ScriptLine`), with a path from `folder`."""
    if line is None:
        return UNKNOWN_LOC
    return place(_short(line.file, folder), line.line, line.backward, line.module)


@lru_cache(maxsize=4096)
def _short(file: str, folder: str) -> str:
    """Return the path of a file relative to a folder, or its last two parts if it is elsewhere."""
    path = os.path.relpath(file, folder)
    return os.sep.join(file.split(os.sep)[-2:]) if path.startswith(os.pardir) else path
