"""The versions of Python, torch, jax and xDSL that lazytpu was checked with, and the warning about others.

torch, jax and xDSL move names that lazytpu uses from release to release. One file per library looks up these
differences by version (docs/versions.md); no other file compares versions.
"""

from __future__ import annotations

import re
import sys
import warnings
from importlib import metadata
from typing import NamedTuple


class Combination(NamedTuple):
    """Minor releases of Python and of the libraries under lazytpu."""

    python: str
    torch: str
    jax: str
    xdsl: str

    def __str__(self) -> str:
        return f"Python {self.python} with torch {self.torch}, jax {self.jax} and xdsl {self.xdsl}"


CHECKED = (
    Combination("3.11", "2.13", "0.10", "0.74"),
    Combination("3.11", "2.14", "0.10", "0.74"),
    Combination("3.11", "2.15", "0.10", "0.75"),
    Combination("3.12", "2.15", "0.11", "0.75"),
    Combination("3.12", "2.15", "0.12", "0.75"),
    Combination("3.13", "2.15", "0.12", "0.75"),
    Combination("3.14", "2.15", "0.12", "0.75"),
)
"""The combinations that `make test-versions` runs; the README has the results."""


class UncheckedVersionWarning(UserWarning):
    """A library's release is not among the releases that lazytpu, or its hook for that library, was checked with."""


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 13, 0) for "2.13.0+cpu", () for a text that begins with none."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def minor(version: str) -> str:
    """Return the minor release of a version: "2.13" for "2.13.0+cpu"."""
    return ".".join(map(str, release(version)[:2]))


def require_one_release(jax: str, jaxlib: str) -> None:
    """Raise ImportError unless jax and jaxlib have the same release. jax accepts some other pairs, but the private
    names of both were checked together."""
    if release(jax) != release(jaxlib):
        raise ImportError(
            f"jax is {jax} and jaxlib is {jaxlib}; lazytpu needs one release of both: "
            f"pip install jax=={jax} jaxlib=={jax}"
        )


def installed() -> Combination:
    """Return this Python's minor release, with the installed releases."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Combination(python, *[minor(metadata.version(name)) for name in ("torch", "jax", "xdsl")])


def warn_unchecked() -> None:
    """Warn unless the installed combination was checked."""
    found = installed()
    if found not in CHECKED:
        warnings.warn(
            f"lazytpu was not checked on {found}, but on {'; '.join(map(str, CHECKED))}. If something fails or gives "
            "other values than on the CPU, install one of these.",
            UncheckedVersionWarning,
            stacklevel=2,
        )
