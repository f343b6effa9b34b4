"""A program for many sizes at the sizes of one trace, with padded arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lazytpu.aten.errors import Check
from lazytpu.engine.errors.origins import origins
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.launching.padding import fitted
from lazytpu.engine.programs.binding import Factors
from lazytpu.ir.forms import parse
from lazytpu.ir.symbolic import respelled
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.custom_layout import arrays_of, buffer_of, relayout
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.buffers.repadding import Memory
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record


@dataclass(frozen=True, slots=True, eq=False)
class AtSizes(Compiled):
    """A program of a bucket, bound to the sizes of a trace (`pack`, i32).

    `arguments` and `results` are sizes in memory, None for an array without padding. `shapes` are the true sizes of the
    results.
    """

    pack: Any = None
    arguments: tuple[Memory | None, ...] = ()
    results: tuple[Memory | None, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def bind(cls, shared: Compiled, sizes: Mapping[str, int], records: Sequence[Record]) -> AtSizes:
        """Return a bucket's program bound to the `sizes` of a trace with these records.

        Errors name the source lines of the trace, and messages its sizes. Raise ValueError if the sizes of arguments or
        results differ from torch's.
        """
        padding = shared.binding.padding
        assert padding is not None
        pack = np.array([sizes[name] for name in padding.symbols], np.int32)
        arguments = tuple([_memory(dims, sizes) for dims in padding.arguments])
        results = tuple([_memory(dims, sizes) for dims in padding.results])
        slots = Slots(records)
        layouts, inputs = slots.layouts, list(slots.inputs)
        taken = [layouts[inputs[i]].memory_shape for i in shared.binding.inputs]
        shapes = [layouts[slot].memory_shape for slot in shared.binding.live]
        for what, all_dims, expected in (("argument", padding.arguments, taken), ("result", padding.results, shapes)):
            for dims, shape in zip(all_dims, expected, strict=True):
                if (true := _true(dims, sizes)) != shape:
                    raise ValueError(f"the program has {what}s of the sizes {true}; torch expects {shape}")
        checks = tuple([_at(check, records, sizes) for check in shared.binding.checks])
        binding = replace(shared.binding, checks=checks)
        made_by = origins(records, binding.live, shared.origins[0].program or "") if shared.origins else ()
        return cls(
            shared.program, binding, shared.nbytes, made_by, shared.lineage, shared.queue, shared.timing,
            pack, arguments, results, tuple(shapes),
        )  # fmt: skip

    def _add_inputs(self, arguments: list[Any], buffers: Sequence[Buffer]) -> None:
        layouts = self.program.layouts
        if layouts is None:
            inputs = zip(self.binding.inputs, self.arguments)  # without `strict`, as in `Launch`
            arguments.extend(
                [buffers[i].array if memory is None else fitted(buffers[i], memory) for i, memory in inputs]
            )
        else:
            wanted = layouts.arguments[len(arguments) :]
            inputs = zip(self.binding.inputs, self.arguments, wanted, strict=False)
            arguments.extend([_argument(buffers[i], memory, layout) for i, memory, layout in inputs])
        arguments.append(self.queue.packs.upload(self.pack))

    def _results(self, arrays: Sequence[Any], outcomes: Iterable[Any]) -> list[Buffer]:
        layouts = self.program.layouts
        # Not strict: the last array is the status.
        rows = zip(arrays, self.results, self.shapes, self.nbytes, self.origins, outcomes)
        if layouts is None:
            return [
                Buffer(array, nbytes, origin, outcome)
                if padded is None
                else PaddedBuffer(array, nbytes, padded, shape, origin, outcome)
                for array, padded, shape, nbytes, origin, outcome in rows
            ]
        return [
            buffer_of(layout, array, nbytes, origin, outcome)
            if padded is None
            else PaddedBuffer(_plain(array, layout), nbytes, padded, shape, origin, outcome)
            for (array, padded, shape, nbytes, origin, outcome), layout in zip(rows, layouts.results, strict=False)
        ]


def _at(check: Check, records: Sequence[Record], sizes: Mapping[str, int]) -> Check:
    """Return a check with its message and line at these sizes."""
    return replace(check, message=respelled(check.message, sizes), line=records[check.record].line)


def _memory(dims: Sequence[Factors], sizes: Mapping[str, int]) -> Memory | None:
    """Return the sizes in memory of an array with these dimensions; None if it is never padded."""
    if all(str(size) == true for factors in dims for size, true in factors):
        return None
    memory: list[Any] = []
    for factors in dims:
        if len(factors) > 1:
            memory.append(tuple([(size, parse(true).at(sizes)) for size, true in factors]))
        else:
            memory.append(factors[0][0] if factors else 1)
    return tuple(memory)


def _true(dims: Sequence[Factors], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the true sizes of an array with these dimensions."""
    return tuple([int(np.prod([parse(true).at(sizes) for _, true in factors], dtype=np.int64)) for factors in dims])


def _argument(buffer: Any, memory: Memory | None, layout: str | None) -> Any:
    """Return the array of an argument with these sizes in memory and this device layout."""
    if memory is not None:
        array = fitted(buffer, memory)
        return array if layout is None else relayout(array, None, layout)
    return arrays_of([buffer], [layout])[0]


def _plain(array: Any, layout: str | None) -> Any:
    """Return an array in the default device layout."""
    return array if layout is None else relayout(array, layout, None)
