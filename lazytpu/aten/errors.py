"""What can go wrong with a trace because of what it computes: at its import, or on the device by its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazytpu.trace.trie import Record


@dataclass(frozen=True)
class Check:
    """A check of values: its message, the name of the exception that carries it, and where the user's op is.

    `record` is the index of the trace's record that makes it.
    """

    message: str
    error: str
    op: str
    line: Any
    record: int


class ImportFailure(Exception):
    """A record could not be imported: carries it, so that the error can name the op and the user's line."""

    def __init__(self, record: Record, cause: BaseException):
        super().__init__(f"{record.op} at {record.line}: {type(cause).__name__}: {cause}")
        self.record = record
