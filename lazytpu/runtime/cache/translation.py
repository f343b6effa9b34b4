"""What the translation of a trace depends on besides the trace: what its program depends on, and who translates."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from lazytpu.runtime.cache import fingerprint

KIND = "trace"

# torch decomposes ops, jax lowers templates, the others run in passes and emission.
_TRANSLATORS = ("torch", "jax", "numpy", "ml_dtypes", "networkx", "xdsl")


@cache
def translators() -> Mapping[str, str]:
    """Who translates traces: a digest of lazytpu's own source, and the versions of the others."""
    return {
        "lazytpu source": fingerprint.source_digest(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: metadata.version(name) for name in _TRANSLATORS},
    }


@cache
def environment() -> Mapping[str, str]:
    """The environment of translation, in words: that of programs, and who translates."""
    return {**fingerprint.environment(), **translators()}


@cache
def environment_digest() -> str:
    """`environment()` in 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(environment().items()):
        digest.update(f"{len(name)} {name}={len(value)} {value}\n".encode())
    return digest.hexdigest()


def trace_key(content: str) -> str:
    """The name in the cache of the program of a trace; `content` is the digest of the trace and of what is asked."""
    return hashlib.sha256(f"{environment_digest()} {content}".encode()).hexdigest()


def describe(name: str, records: int, program: str) -> dict[str, Any]:
    """What the entry of a trace says of it, in this environment; `program` is the key of its executable."""
    return {
        "name": name,
        "records": records,
        "program": program,
        "environment": environment_digest(),
        "made_for": dict(environment()),
    }
