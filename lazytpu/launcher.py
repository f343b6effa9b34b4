"""Reads the ranks that a launcher such as torchrun sets in the environment of each process."""

from __future__ import annotations

import os


def local_rank() -> int | None:
    """Return the rank of this process among the job's processes on this machine; None if no launcher started it."""
    return _number("LOCAL_RANK")


def local_size() -> int | None:
    """Return the number of the job's processes on this machine; None if no launcher started this one."""
    return _number("LOCAL_WORLD_SIZE")


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
