"""Python processes that this one starts, which have to find the modules that it finds."""

from __future__ import annotations

import os
import sys


def search_path() -> str:
    """`sys.path` as a child's PYTHONPATH. The empty entry is the folder that this process is in, which may be gone."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    return os.pathsep.join(filter(None, [entry or here for entry in sys.path]))
