"""Child processes in Python, which must import the same modules as this process."""

from __future__ import annotations

import os
import sys


def search_path() -> str:
    """Return `sys.path` as PYTHONPATH for a child. An empty entry becomes the current folder unless that was
    deleted."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    return os.pathsep.join(filter(None, [entry or here for entry in sys.path]))
