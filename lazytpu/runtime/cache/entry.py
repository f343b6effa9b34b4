"""The bytes of one entry: a fixed part, a header in JSON, and the payload. Nothing is ever unpickled.

offset  size
     0     8  "lazytpu\\n"
     8     4  version of this format, little-endian like all numbers here
    12     4  bytes of the header
    16     8  bytes of the payload
    24     8  how often it was read: a counter that is written in place, and the only part no digest covers
    32    32  SHA-256 of the first 24 bytes, the header and the payload
    64        header: {"kind", "key", "created", "about"}, UTF-8
              payload
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAGIC = b"lazytpu\n"
VERSION = 1  # of the format: raised when its bytes change meaning
FIXED = struct.Struct("<8sIIQ")
HITS = struct.Struct("<Q")
HITS_AT = FIXED.size
DIGEST_AT = HITS_AT + HITS.size
HEADER_AT = DIGEST_AT + 32


class BadEntry(ValueError):
    """These bytes are no entry, or another entry than the requested one. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry stored under (`kind`, `key`): its `payload`, and `about`, a JSON description.

    `created` is in seconds since 1970. `hits` counts the earlier reads, roughly: two processes that read at the same
    moment may count as one.
    """

    kind: str
    key: str
    payload: bytes
    about: Mapping[str, Any]
    created: float
    hits: int


def encode(entry: Entry) -> list[bytes]:
    """Return the parts of an entry's file, in order. Raises TypeError when `about` is not JSON."""
    described = {"kind": entry.kind, "key": entry.key, "created": entry.created, "about": entry.about}
    header = json.dumps(described, separators=(",", ":")).encode()
    fixed = FIXED.pack(MAGIC, VERSION, len(header), len(entry.payload))
    return [fixed, HITS.pack(entry.hits), _digest(fixed, header, entry.payload), header, entry.payload]


def decode(data: bytes, kind: str, key: str) -> Entry:
    """Check the digest of these bytes and return the entry. Raises BadEntry."""
    length, size = lengths(data)
    if len(data) != HEADER_AT + length + size:
        raise BadEntry(f"it has {len(data):,} bytes of {HEADER_AT + length + size:,}")
    header, payload = data[HEADER_AT : HEADER_AT + length], data[HEADER_AT + length :]
    if _digest(data[:HITS_AT], header, payload) != data[DIGEST_AT:HEADER_AT]:
        raise BadEntry("its bytes do not have the digest they were written with")
    about, created = describe(header, kind, key)
    return Entry(kind, key, payload, about, created, hits_of(data))


def lengths(data: bytes) -> tuple[int, int]:
    """Return (bytes of the header, bytes of the payload) from the fixed part. Raises BadEntry."""
    if len(data) < HEADER_AT:
        raise BadEntry(f"it has {len(data)} bytes, and none has fewer than {HEADER_AT}")
    magic, version, length, size = FIXED.unpack_from(data)
    if magic != MAGIC:
        raise BadEntry("it is no file of this cache")
    if version != VERSION:
        raise BadEntry(f"it is of version {version}; this lazytpu reads version {VERSION}")
    return length, size


def hits_of(data: bytes) -> int:
    """Return the counter of reads in the fixed part."""
    return int(HITS.unpack_from(data, HITS_AT)[0])


def describe(header: bytes, kind: str, key: str) -> tuple[Mapping[str, Any], float]:
    """Return (`about`, `created`) from the header of an entry. Raises BadEntry when it is unreadable or names another
    entry."""
    try:
        fields = json.loads(header)
        about, created = fields["about"], float(fields["created"])
        name = (fields["kind"], fields["key"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadEntry(f"its header cannot be read: {error!r}") from error
    if name != (kind, key) or not isinstance(about, dict):
        raise BadEntry(f"it was written as {name[0]} {name[1]}")
    return about, created


def _digest(fixed: bytes, header: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(fixed)
    digest.update(header)
    digest.update(payload)
    return digest.digest()
