"""Standard error, which a script may have closed, taken away, or replaced by an object of its own."""

from __future__ import annotations

import sys

UNREAD = (AttributeError, OSError, ValueError)
"""What writing to it raises when there is none, its reader is gone, it is closed or detached, or it lacks a letter.
What was to be told is not worth an error of the script."""


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    try:
        return sys.stderr.isatty()
    except UNREAD:
        return False
