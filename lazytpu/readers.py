"""Readers of settings: each converts the user's value, often the text of an environment variable, and raises ValueError
or TypeError for a value that is not allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def one_of(*words: str) -> Callable[[Any], str]:
    """Read one of these words, in any case."""

    def read(value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else value
        if word not in words:
            raise ValueError
        return word

    return read


def integer(low: int, high: int | None = None) -> Callable[[Any], int]:
    """Read an integer from `low` to `high`, or its text, such as 50_000."""

    def read(value: Any) -> int:
        if not isinstance(value, int | str):
            raise TypeError
        number = int(value)  # int("50_000") is 50000
        if number < low or (high is not None and number > high):
            raise ValueError
        return number

    return read


_FLAGS = {"1": True, "on": True, "true": True, "yes": True, "0": False, "off": False, "false": False, "no": False}


def flag(value: Any) -> bool:
    """Read a bool, or a word for one."""
    if isinstance(value, bool):
        return value
    try:
        return _FLAGS[str(value).strip().lower()]
    except KeyError:
        raise ValueError from None


def seconds(value: Any) -> float:
    """Read seconds: 0 or more, also infinity."""
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if not number >= 0:  # NaN neither
        raise ValueError
    return number


def folder(value: Any) -> Path | None:
    """Read a folder, which need not exist; None and "" are None."""
    if value is None or value == "":
        return None
    path = Path(value).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError
    return path


def plugins(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the libraries with a PJRT C API that jax is configured to load, by platform name."""
    listed = environment.get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",")
    return {name: path for name, _, path in (entry.partition(":") for entry in listed) if name}


def platform(value: Any) -> str | None:
    """Read a platform of XLA; None and "" are None."""
    return one_of("cpu", "tpu", "gpu", "cuda", "rocm", *plugins())(value) if value else None


def target(value: Any) -> str | None:
    """Read a target of the passes, one of `lazytpu.passes.target.NAMES`; None and "" are None."""
    return one_of("cpu", "gpu", "tpu", "v5e", "v5p", "v6e", "tpu7x")(value) if value else None


def cache_folder(value: Any) -> Path | None:
    """Read a folder; None, "" and "off" are None."""
    if value is None or str(value).strip().lower() in ("", "off"):
        return None
    return Path(value)


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([a-z]*)")


def size(value: Any) -> int:
    """Read bytes: a number, or a number and a unit such as 1.5 MiB."""
    match = _SIZE.fullmatch(str(value).strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError
    return int(float(match[1]) * _UNITS[match[2]])


def memory(value: Any) -> int:
    """Read bytes as `size`: 0, or at least 1 MiB."""
    number = size(value)
    if 0 < number < 2**20:
        raise ValueError
    return number


def buckets(value: Any) -> str | tuple[int, ...]:
    """Read "off", "auto", or sizes of at least 2, as a sequence or as text with commas. Returns the sizes sorted,
    without duplicates."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("off", "auto"):
        return word
    sizes = {integer(2)(size) for size in (word.split(",") if isinstance(word, str) else word)}
    if not sizes:
        raise ValueError
    return tuple(sorted(sizes))
