"""Libraries: entries of the cache in one file, so that another machine need not compile.

A library is a zip file of `manifest.json`, which lists the entries, and `entries/KEY.KIND`, each as in the folder of
the cache. No member is extracted by its name: an entry is read, its digests are checked, and it is stored under the key
in its own header. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lazytpu.runtime.cache.entry import BadEntry, Entry, decode, encode
from lazytpu.runtime.cache.store import Store

FORMAT = "lazytpu library"
VERSION = 1  # of the manifest: raised when its fields change meaning
MANIFEST = "manifest.json"
KINDS = ("list", "program", "trace")
_KEY = re.compile(r"[0-9a-f]{64}")


class BadLibrary(ValueError):
    """The file is no library, or a damaged one. None of its entries was stored."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Entries for another environment. `differs` maps the name of each difference to (value there, value here)."""

    names: tuple[str, ...]
    differs: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The outcome for the entries of a library: `stored` and `present` (already in the cache) ones can be used here,
    `refused` ones cannot."""

    stored: int = 0
    present: int = 0
    refused: tuple[Foreign, ...] = field(default=())

    def __str__(self) -> str:
        usable = self.stored + self.present
        lines = [f"{usable:,} entries can be used here ({self.present:,} of them were in the cache already)"]
        for foreign in self.refused:
            shown = ", ".join(foreign.names[:3]) + (", ..." if len(foreign.names) > 3 else "")
            lines.append(f"{len(foreign.names):,} are for another environment ({shown}), and were refused:")
            for name, (theirs, ours) in foreign.differs.items():
                lines.append(f"  {name}: {_line(theirs)} there, {_line(ours)} here")
        return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.split()) or "nothing"


def pack(store: Store, path: Path, kinds: Sequence[str] = KINDS) -> int:
    """Write all entries of these kinds to a library at `path`, atomically, and return their number.

    Raises OSError, and ValueError when there is no entry.
    """
    entries = [listed for kind in kinds for listed in store.entries(kind)]
    described: list[dict[str, Any]] = []
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:  # readable for whom the umask allows it, unlike a temporary file
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for listed in sorted(entries, key=lambda item: (item.kind, item.key)):
                    entry = store.get(listed.kind, listed.key)
                    if entry is None:  # evicted, or damaged: the store has warned about it
                        continue
                    data = b"".join(encode(entry))
                    digest = hashlib.sha256(data).hexdigest()
                    described.append({"kind": entry.kind, "key": entry.key, "bytes": len(data), "sha256": digest})
                    archive.writestr(_member(entry.kind, entry.key), data)
                if not described:
                    raise ValueError(f"the cache in {store.root} holds nothing to pack")
                archive.writestr(
                    MANIFEST, json.dumps({"format": FORMAT, "version": VERSION, "entries": described}, indent=1)
                )
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return len(described)


def unpack(store: Store, path: Path, here: Mapping[str, str]) -> Unpacked:
    """Store the entries of a library whose environment is `here`; refuse the others.

    The whole file is checked before the first entry is stored. Raises OSError, and BadLibrary with the reason.
    """
    for _ in _entries(path):  # raises BadLibrary for any damage
        pass
    stored = present = 0
    refused: dict[tuple[tuple[str, tuple[str, str]], ...], list[str]] = {}
    for entry in _entries(path):
        differs = _differences(entry, here)
        if differs:
            refused.setdefault(tuple(differs.items()), []).append(f"{entry.kind} {entry.about.get('name', '')}".strip())
        elif store.has(entry.kind, entry.key):
            present += 1
        elif store.put(entry.kind, entry.key, entry.payload, entry.about):
            stored += 1
        else:
            raise OSError(f"the entries of {path} cannot be stored in {store.root}")
    return Unpacked(stored, present, tuple(Foreign(tuple(v), dict(k)) for k, v in refused.items()))


def _differences(entry: Entry, here: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    made_for = entry.about.get("made_for")
    if not isinstance(made_for, dict) or not made_for:
        return {"made_for": ("not told", "needed")}
    wrong = [name for name, theirs in made_for.items() if here.get(name) != theirs]
    return {str(name): (str(made_for[name]), here.get(name, "nothing")) for name in wrong}


def _member(kind: str, key: str) -> str:
    return f"entries/{key}.{kind}"


def _entries(path: Path) -> Iterator[Entry]:
    try:
        with zipfile.ZipFile(path) as archive:
            described = _manifest(archive)
            listed = {_member(about["kind"], about["key"]): about for about in described}
            if sorted([*listed, MANIFEST]) != sorted(archive.namelist()):
                raise BadLibrary("what is in it is not what its manifest says")
            for name, about in listed.items():
                if about["kind"] not in KINDS or not _KEY.fullmatch(about["key"]):
                    raise BadLibrary(f"{name} is no name of an entry")
                if archive.getinfo(name).file_size != about["bytes"]:
                    raise BadLibrary(f"{name} is not of the size that its manifest says")
                data = archive.read(name)
                if hashlib.sha256(data).hexdigest() != about["sha256"]:
                    raise BadLibrary(f"{name} does not have the digest that its manifest says")
                yield decode(data, about["kind"], about["key"])
    except BadLibrary as error:
        raise BadLibrary(f"{path} is no library that can be used: {error}") from None
    except (zipfile.BadZipFile, BadEntry, KeyError, TypeError, ValueError, zlib.error, EOFError, RuntimeError) as error:
        raise BadLibrary(f"{path} is no library that can be used: {error}") from error


def _manifest(archive: zipfile.ZipFile) -> list[dict[str, Any]]:
    manifest = json.loads(archive.read(MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadLibrary(f"its manifest is not that of a {FORMAT}")
    if manifest.get("version") != VERSION:
        raise BadLibrary(f"it is of version {manifest.get('version')}; this lazytpu reads version {VERSION}")
    return list(manifest["entries"])
