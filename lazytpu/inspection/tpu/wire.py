"""The wire format of protobuf, for messages whose fields are known by number.

https://protobuf.dev/programming-guides/encoding. jaxlib returns HLO as such bytes, and no library installed with it has
classes for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


class Message:
    """A message: its fields by number, in order. Missing fields are empty or 0."""

    __slots__ = ("fields",)

    def __init__(self, data: bytes | memoryview):
        self.fields: dict[int, list[int | memoryview]] = {}
        for number, value in _fields(memoryview(data)):
            self.fields.setdefault(number, []).append(value)

    def integer(self, number: int) -> int:
        """Return the last value of an integer or enumeration; negative values have 64 bits."""
        values = self._all(number, int)
        return _signed(values[-1]) if values else 0

    def integers(self, number: int) -> tuple[int, ...]:
        """Return all values of a repeated integer, packed or not."""
        result: list[int] = []
        for value in self.fields.get(number, ()):
            if isinstance(value, int):
                result.append(value)
            else:
                at = 0
                while at < len(value):
                    integer, at = _varint(value, at)
                    result.append(integer)
        return tuple(map(_signed, result))

    def raw(self, number: int) -> bytes:
        """Return the last value of a field of bytes."""
        values = self._all(number, memoryview)
        return bytes(values[-1]) if values else b""

    def text(self, number: int) -> str:
        """Return the last value of a string."""
        return self.raw(number).decode()

    def texts(self, number: int) -> list[str]:
        """Return all values of a repeated string."""
        return [bytes(value).decode() for value in self._all(number, memoryview)]

    def message(self, number: int) -> Message:
        """Return a nested message; empty if it is missing."""
        return Message(self.raw(number))

    def messages(self, number: int) -> list[Message]:
        """Return all values of a repeated message."""
        return list(map(Message, self._all(number, memoryview)))

    def _all(self, number: int, kind: type[T]) -> list[T]:
        values = [value for value in self.fields.get(number, ()) if isinstance(value, kind)]
        if len(values) < len(self.fields.get(number, ())):
            raise ValueError(f"field {number} is not of type {kind.__name__}: this is not the expected message")
        return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}: this is not a protobuf message")
        if at + size > len(data):
            raise ValueError("a field reaches past its message: this is not a protobuf message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at == len(data) or shift > 63:
            raise ValueError("a number does not end: this is not a protobuf message")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
