"""The binding of a program to its trace: arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from lazytpu.aten.dtypes import FLOATS8
from lazytpu.aten.errors import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.programs.expressions import Expressions
from lazytpu.runtime.xla.signature import Signature, TensorSpec
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout

_DTYPES = {pack: np.dtype(name) for pack, name in (("f32", "f4"), ("f64", "f8"), ("i64", "i8"), ("ui64", "u8"))}


Factors = tuple[tuple[int, str], ...]
"""The factors of one dimension, outermost first: sizes in memory, and the true sizes as size expressions
(`lazytpu.ir.forms`)."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The arrangement of input arguments and results in memory, by dimension, for a program for many sizes.

    Its last argument is the pack of run-time sizes, in the order of `symbols`. The program serves the sizes at which
    the guards of its `expressions` hold.
    """

    symbols: tuple[str, ...]
    arguments: tuple[tuple[Factors, ...], ...]
    results: tuple[tuple[Factors, ...], ...]
    expressions: Expressions
    verified: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]], compare=False)
    """The sizes at which this process compared it with a trace (`options.verify_sizes`)."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The arguments that a program takes from its trace, and its results.

    Arguments are packs of run-time numbers, by their positions among the packs of `packer` (`packs`), then inputs of
    the trace, by number (`inputs`). The inputs `donated` are donated. Results are the values of the slots `live`, then
    the status: for each of `checks`, whether it passed. A program for many sizes has `padding`.
    """

    packer: Packer
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: frozenset[int]
    live: tuple[int, ...]
    checks: tuple[Check, ...]
    padding: Padding | None = None

    def signature(self, records: Sequence[Record]) -> Signature:
        """Return the signature of the program of a trace with these records. Its executable must have the same."""
        slots = Slots(records)
        inputs = list(slots.inputs)  # in order of admission
        packs = [(_DTYPES[pack], (len(numbers),)) for pack, numbers in self.packer.entries.items()]
        sizes = [] if self.padding is None else [(np.dtype("i4"), (len(self.padding.symbols),))]
        status = np.dtype(bool), (max(1, len(self.checks)),)
        taken = [spec(slots.layouts[inputs[i]]) for i in self.inputs]
        results = [spec(slots.layouts[slot]) for slot in self.live]
        if self.padding is not None:
            taken, results = _in_memory(taken, self.padding.arguments), _in_memory(results, self.padding.results)
        return Signature(
            (*(packs[i] for i in self.packs), *taken, *sizes),
            (*results, status),
            tuple(len(self.packs) + self.inputs.index(i) for i in sorted(self.donated)),
        )


def _in_memory(specs: Sequence[TensorSpec], padding: Sequence[Sequence[Factors]]) -> list[TensorSpec]:
    """Return the same arrays with their padded shapes."""
    return [
        (dtype, tuple([prod(size for size, _ in factors) for factors in dims]))
        for (dtype, _), dims in zip(specs, padding, strict=True)
    ]


def spec(layout: Layout) -> TensorSpec:
    """Return the dtype and shape of a value's array; uint8 for 8-bit floats, which programs take as bits."""
    name = "uint8" if layout.dtype in FLOATS8 else str(layout.dtype).removeprefix("torch.")  # numpy has torch's names
    return np.dtype(name), layout.memory_shape
