"""The environment that the translation of a trace depends on: the one of its program, and the translators' versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from lazytpu.runtime.cache import fingerprint

KIND = "trace"

# torch decomposes ops, jax lowers templates, and the others run in passes and emission.
_TRANSLATORS = ("torch", "jax", "numpy", "ml_dtypes", "networkx", "xdsl")


@cache
def translators() -> Mapping[str, str]:
    """The translators of traces: a digest of lazytpu's own source, and the versions of the others."""
    return {
        "lazytpu source": fingerprint.source_digest(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: metadata.version(name) for name in _TRANSLATORS},
    }


@cache
def environment() -> Mapping[str, str]:
    """The environment of translation in words: the one of programs, and the translators."""
    return {**fingerprint.environment(), **translators()}


@cache
def environment_digest() -> str:
    """The digest of `environment()`, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(environment().items()):
        digest.update(f"{len(name)} {name}={len(value)} {value}\n".encode())
    return digest.hexdigest()


def trace_key(content: str) -> str:
    """Return the cache key of a trace's program. `content` is the digest of the trace and of the requested results."""
    return hashlib.sha256(f"{environment_digest()} {content}".encode()).hexdigest()


def describe(name: str, records: int, program: str) -> dict[str, Any]:
    """Return the description in a trace's entry, for this environment; `program` is the key of its executable."""
    return {
        "name": name,
        "records": records,
        "program": program,
        "environment": environment_digest(),
        "made_for": dict(environment()),
    }
