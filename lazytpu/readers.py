"""From what a setting was given, often the text of an environment variable, to its value; ValueError or TypeError for
what it cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def one_of(*words: str) -> Callable[[Any], str]:
    """One of these words, in any case."""

    def read(given: Any) -> str:
        word = given.strip().lower() if isinstance(given, str) else given
        if word not in words:
            raise ValueError
        return word

    return read


def integer(low: int, high: int | None = None) -> Callable[[Any], int]:
    """A whole number from `low` to `high`, or its text, such as 50_000."""

    def read(given: Any) -> int:
        if not isinstance(given, int | str):
            raise TypeError
        number = int(given)  # int("50_000") is 50000
        if number < low or (high is not None and number > high):
            raise ValueError
        return number

    return read


_FLAGS = {"1": True, "on": True, "true": True, "yes": True, "0": False, "off": False, "false": False, "no": False}


def flag(given: Any) -> bool:
    """A bool, or a word for one."""
    if isinstance(given, bool):
        return given
    try:
        return _FLAGS[str(given).strip().lower()]
    except KeyError:
        raise ValueError from None


def seconds(given: Any) -> float:
    """Seconds, 0 or more, infinity among them."""
    if isinstance(given, bool):
        raise TypeError
    number = float(given)
    if not number >= 0:  # NaN neither
        raise ValueError
    return number


def folder(given: Any) -> Path | None:
    """A folder, which need not be there yet; None for nothing."""
    if given is None or given == "":
        return None
    path = Path(given).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError
    return path


def plugins(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The libraries with a PJRT C API that jax is told of, by the names of their platforms."""
    listed = environment.get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",")
    return {name: path for name, _, path in (each.partition(":") for each in listed) if name}


def platform(given: Any) -> str | None:
    """A platform of XLA; None for nothing."""
    return one_of("cpu", "tpu", "gpu", "cuda", "rocm", *plugins())(given) if given else None


def target(given: Any) -> str | None:
    """What passes make programs for, as `lazytpu.passes.target.NAMES` lists it; None for nothing."""
    return one_of("cpu", "gpu", "tpu", "v5e", "v5p", "v6e", "tpu7x")(given) if given else None


def cache_folder(given: Any) -> Path | None:
    """A folder; None for nothing, and for the word off."""
    if given is None or str(given).strip().lower() in ("", "off"):
        return None
    return Path(given)


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([a-z]*)")


def size(given: Any) -> int:
    """Bytes: a number, or a number and a unit such as 1.5 MiB."""
    match = _SIZE.fullmatch(str(given).strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError
    return int(float(match[1]) * _UNITS[match[2]])


def memory(given: Any) -> int:
    """Bytes as `size` reads them: none, or at least 1 MiB."""
    number = size(given)
    if 0 < number < 2**20:
        raise ValueError
    return number
