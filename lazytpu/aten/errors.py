"""The failures of a trace that depend on its ops or values: at import, or on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazytpu.trace.trie import Record


@dataclass(frozen=True)
class Check:
    """A check of values on the device.

    A failure raises the exception type named `error` with `message`. `op` and `line` are the user's. `record` is the
    index of the record in its trace.
    """

    message: str
    error: str
    op: str
    line: Any
    record: int


class ImportFailure(Exception):
    """A record could not be imported. Carries the record, so that the error can name the op and the user's line."""

    def __init__(self, record: Record, cause: BaseException):
        super().__init__(f"{record.op} at {record.line}: {type(cause).__name__}: {cause}")
        self.record = record
