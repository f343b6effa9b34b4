"""The exception that ends a rank's script, for the errors of the other ranks."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from lazytpu.frontend.lines import is_library

MAX_LENGTH = 300  # characters of an exception's text


def described(error: BaseException) -> str:
    """Return the type of an exception, the first line of its text, and the innermost source line outside torch and
    lazytpu."""
    text = next(iter(str(error).splitlines()), "")
    shown = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [place for place in frames if not is_library(place[0])] or frames
    where = f" at {users[-1][0]}:{users[-1][1]}" if users else ""
    return type(error).__name__ + (f": {shown}" if shown else "") + where


def send_last_words(send: Callable[[str], None]) -> None:
    """Call `send` with the description of an exception that no code catches, before the current `sys.excepthook` shows
    it."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            send(described(error.with_traceback(trace)))
        finally:
            show(kind, error, trace)

    sys.excepthook = hook
