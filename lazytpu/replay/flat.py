"""The flat arguments and results of a captured call: packs of the tensors that its program updates alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazytpu.engine.compiled import Compiled
from lazytpu.runtime.buffer import Buffer
from lazytpu.runtime.laid_out import result
from lazytpu.runtime.resident import Pack, Part, pack_of
from lazytpu.trace.value import Value


class Flat:
    """`holders` are, of each flat argument, the places of its values among those of the call; `kept`, of each flat
    result, the places of the values that go on with its parts (None for a part that becomes a new value, or none)."""

    def __init__(self, compiled: Compiled, holders: Sequence[Sequence[int]], kept: Sequence[Sequence[int | None]]):
        self.compiled = compiled
        self.holders = holders
        self.kept = kept
        self.position = {slot: i for i, slot in enumerate(compiled.live)}
        self.in_place = [list(a) == list(b) for a, b in zip(holders, kept, strict=True)]

    def gather(self, buffers: Sequence[Buffer]) -> list[Pack]:
        """The flat arguments. Raises RunError and OutOfMemory as `pack_of` does."""
        resident = self.compiled.resident
        return [pack_of([buffers[i] for i in at], each.form) for each, at in zip(resident, self.holders, strict=True)]

    def keep(self, given: Sequence[Pack], results: Sequence[Any], values: Sequence[Value]) -> list[Pack]:
        """After the run: `given`, the packs that it took, are gone, and `values` have their parts of the results."""
        made: list[Pack] = []
        for pack, array, kept, in_place in zip(given, results, self.kept, self.in_place, strict=False):
            parts: list[Any] = [values[i].buffer for i in kept if i is not None]
            if in_place and isinstance(parts[0], Part) and parts[0].pack is pack:
                pack.array = array  # of the same parts, in the same memory
                for part in parts:
                    part.drop_copy()
                made.append(pack)
                continue
            fresh = Pack(array, pack.form)
            for index, i in enumerate(kept):
                if i is not None:
                    values[i].buffer = Part(fresh, index, pack.form.size(index), values[i].buffer.origin)
            pack.release()
            made.append(fresh)
        return made

    def buffer(self, slot: int, results: Sequence[Any], made: Sequence[Pack]) -> Buffer:
        """A new buffer of a live slot."""
        compiled = self.compiled
        place, layouts = compiled.places.get(slot), compiled.program.layouts
        if place is None:
            i = self.position[slot]
            return result(layouts, i, results[i], compiled.nbytes[i], compiled.origins[i])
        if place.pack is None:
            return result(layouts, place.index, results[place.index], place.nbytes, place.origin)
        return Part(made[place.pack], place.index, place.nbytes, place.origin)
