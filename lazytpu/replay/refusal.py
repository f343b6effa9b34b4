"""Why a call cannot be captured."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A call that cannot be replayed; the message says why, where, and what to do."""


def where(record: Any) -> str:
    """The op of a record and the user's line."""
    return f"{record.op} at {record.line}"


class CaptureWarning(UserWarning):
    """A step function runs uncaptured, or a capture was found wrong and dropped."""
