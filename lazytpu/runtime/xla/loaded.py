"""The programs that this process has loaded (`lazytpu.export.load`), for the template that calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program: its portable artifact for each platform, the options of XLA's compiler that it needs there, and
    the (dtype, shape) of each result."""

    name: str
    artifacts: Mapping[str, bytes]
    options: Mapping[str, Mapping[str, Any]]
    results: tuple[tuple[Any, tuple[int, ...]], ...]


PROGRAMS: dict[str, Program] = {}
"Loaded programs by digest. One stays for good: a trace may still lead to it."
EXACT = {"xla_allow_excess_precision": False}
"Options of XLA that all programs of lazytpu are compiled with (`client.compile_options`), and those of JAX are not."
