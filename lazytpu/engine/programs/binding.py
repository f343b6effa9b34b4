"""How a program is bound to the trace that it was made from: what it takes of the trace, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from lazytpu.aten.errors import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.programs.expressions import Expressions
from lazytpu.runtime.xla.signature import Signature, TensorSpec
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout

_DTYPES = {pack: np.dtype(name) for pack, name in (("f32", "f4"), ("f64", "f8"), ("i64", "i8"), ("ui64", "u8"))}


Factors = tuple[tuple[int, str], ...]
"Of one dimension, the outermost first: sizes in memory, and the forms of the true sizes (`lazytpu.ir.forms`)."


@dataclass(frozen=True, slots=True)
class Padding:
    """How the arguments that are inputs, and the results, of a program for many sizes lie in memory, dimension by
    dimension. The sizes of a run are a pack of `symbols`, in this order, which is the last argument. It serves the
    sizes at which the guards of its `expressions` hold."""

    symbols: tuple[str, ...]
    arguments: tuple[tuple[Factors, ...], ...]
    results: tuple[tuple[Factors, ...], ...]
    expressions: Expressions
    verified: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]], compare=False)
    "The sizes at which this process compared it with a trace (`options.verify_sizes`)."


@dataclass(frozen=True, slots=True)
class Binding:
    """What a program takes of its trace, and what it gives back.

    Its arguments are packs of run-time numbers, by their positions among those that `packer` fills (`packs`), then
    inputs of the trace, by number (`inputs`). It takes the memory of the inputs `donated`. Its results are the values
    of the slots `live`, then its status: for each of `checks`, whether it passed. One for many sizes has `padding`.
    """

    packer: Packer
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: frozenset[int]
    live: tuple[int, ...]
    checks: tuple[Check, ...]
    padding: Padding | None = None

    def signature(self, records: Sequence[Record]) -> Signature:
        """What the program of a trace with these records takes and gives, as the trace says. Its executable must
        agree."""
        slots = Slots(records)
        inputs = list(slots.inputs)  # in order of admission
        packs = [(_DTYPES[pack], (len(numbers),)) for pack, numbers in self.packer.entries.items()]
        sizes = [] if self.padding is None else [(np.dtype("i4"), (len(self.padding.symbols),))]
        status = np.dtype(bool), (max(1, len(self.checks)),)
        taken = [spec(slots.layouts[inputs[i]]) for i in self.inputs]
        given = [spec(slots.layouts[slot]) for slot in self.live]
        if self.padding is not None:
            taken, given = _in_memory(taken, self.padding.arguments), _in_memory(given, self.padding.results)
        return Signature(
            (*(packs[i] for i in self.packs), *taken, *sizes),
            (*given, status),
            tuple(len(self.packs) + self.inputs.index(i) for i in sorted(self.donated)),
        )


def _in_memory(specs: Sequence[TensorSpec], padding: Sequence[Sequence[Factors]]) -> list[TensorSpec]:
    """The same arrays as they lie in memory."""
    return [
        (dtype, tuple([prod(size for size, _ in factors) for factors in dims]))
        for (dtype, _), dims in zip(specs, padding, strict=True)
    ]


def spec(layout: Layout) -> TensorSpec:
    """The dtype and shape of the array of a value."""
    return np.dtype(str(layout.dtype).removeprefix("torch.")), layout.memory_shape  # numpy has torch's names
