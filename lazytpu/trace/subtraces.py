"""Traces as functions: what a branch computes, or the body of a loop.

A record holds no other records. One that runs a subtrace names it by its digest, which is equal in every process; the
subtraces themselves are kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class Subtrace:
    """A function of `arguments`, arrays of these layouts.

    `inputs` maps a slot to the argument that has it. `numbers` are the run-time numbers of the records, all constants;
    `draws` counts the random ops, whose own are not among them. Each of `results` is an operand, or the index of an
    argument that is returned as it is; `outs` are their layouts.
    """

    arguments: tuple[Layout, ...]
    records: tuple[Record, ...]
    inputs: dict[int, int]
    numbers: tuple[Any, ...]
    draws: int
    results: tuple[Operand | int, ...]
    outs: tuple[Layout, ...]


SUBTRACES: dict[str, Subtrace] = {}
"By digest. They stay: a program of this process may be compiled again at any time."
