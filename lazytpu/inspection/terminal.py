"""Output to standard error, which a script may have closed, removed, or replaced by its own object."""

from __future__ import annotations

import sys
from contextlib import suppress

from lazytpu.options import options

UNREAD = (AttributeError, OSError, ValueError)
"""Exceptions of a standard error that is missing, closed, detached, without a reader, or without a character. A message
of lazytpu is not worth an error of the script, so these are ignored."""


def is_terminal() -> bool:
    """Return whether standard error is a terminal."""
    try:
        return sys.stderr.isatty()
    except UNREAD:
        return False


def say(message: str) -> None:
    """Print one line to standard error, if that is a terminal or LAZYTPU_DEBUG is at least 1."""
    if sys.stderr is not None and (options.debug >= 1 or is_terminal()):
        with suppress(*UNREAD):
            print(f"lazytpu: {message}", file=sys.stderr, flush=True)
