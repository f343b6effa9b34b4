"""What a launcher such as torchrun says of this process, in the environment variables that it sets for each."""

from __future__ import annotations

import os


def local_rank() -> int | None:
    """The number of this process among those of the job on this machine; None where no launcher has started it."""
    return _number("LOCAL_RANK")


def local_size() -> int | None:
    """How many processes of the job are on this machine; None where no launcher has started this one."""
    return _number("LOCAL_WORLD_SIZE")


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
