"""A program for many sizes at those of one trace: its arguments are padded, and so are its results."""

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
    """A program of a bucket, bound to the sizes of a trace (`pack`, i32). `arguments` and `results` are their sizes in
    memory, None for one that has no padding, and `shapes` the true sizes of the results."""

    pack: Any = None
    arguments: tuple[Memory | None, ...] = ()
    results: tuple[Memory | None, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def bind(cls, shared: Compiled, sizes: Mapping[str, int], records: Sequence[Record]) -> AtSizes:
        """A bucket's program at the sizes of its symbols that a trace of these records has. The lines that errors name
        are those of the trace, and their messages those of its sizes. Raises ValueError if the program takes arguments
        or gives results of other sizes than torch expects."""
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
            each = zip(self.binding.inputs, self.arguments)  # without `strict`, as in `Launch`
            arguments.extend([buffers[i].array if memory is None else fitted(buffers[i], memory) for i, memory in each])
        else:
            wanted = layouts.arguments[len(arguments) :]
            each = zip(self.binding.inputs, self.arguments, wanted, strict=False)
            arguments.extend([_argument(buffers[i], memory, layout) for i, memory, layout in each])
        arguments.append(self.queue.packs.upload(self.pack))

    def _results(self, arrays: Sequence[Any], outcomes: Iterable[Any]) -> list[Buffer]:
        layouts = self.program.layouts
        each = zip(arrays, self.results, self.shapes, self.nbytes, self.origins, outcomes)  # there is a status besides
        if layouts is None:
            return [
                Buffer(array, nbytes, origin, outcome)
                if padded is None
                else PaddedBuffer(array, nbytes, padded, shape, origin, outcome)
                for array, padded, shape, nbytes, origin, outcome in each
            ]
        return [
            buffer_of(layout, array, nbytes, origin, outcome)
            if padded is None
            else PaddedBuffer(_plain(array, layout), nbytes, padded, shape, origin, outcome)
            for (array, padded, shape, nbytes, origin, outcome), layout in zip(each, layouts.results, strict=False)
        ]


def _at(check: Check, records: Sequence[Record], sizes: Mapping[str, int]) -> Check:
    """A check of a trace at these sizes."""
    return replace(check, message=respelled(check.message, sizes), line=records[check.record].line)


def _memory(dims: Sequence[Factors], sizes: Mapping[str, int]) -> Memory | None:
    """The sizes in memory of an array with these dimensions; None for one that is never padded."""
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
    return tuple([int(np.prod([parse(true).at(sizes) for _, true in factors], dtype=np.int64)) for factors in dims])


def _argument(buffer: Any, memory: Memory | None, layout: str | None) -> Any:
    if memory is not None:
        array = fitted(buffer, memory)
        return array if layout is None else relayout(array, None, layout)
    return arrays_of([buffer], [layout])[0]


def _plain(array: Any, layout: str | None) -> Any:
    return array if layout is None else relayout(array, layout, None)
