"""The programs that this process has loaded (`lazytpu.export.load`), for the template that calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program: for each platform its portable artifact and the compile options that it needs, and the (dtype,
    shape) of each result."""

    name: str
    artifacts: Mapping[str, bytes]
    options: Mapping[str, Mapping[str, Any]]
    results: tuple[tuple[Any, tuple[int, ...]], ...]


PROGRAMS: dict[str, Program] = {}
"""Loaded programs by digest. They are never dropped, since a trace may still call them."""
EXACT = {"xla_allow_excess_precision": False}
"""The compile option that all programs of lazytpu have (`client.compile_options`), and those of JAX have not."""
