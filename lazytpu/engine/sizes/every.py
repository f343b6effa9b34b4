"""All templates: which one a trace is of, and which others are its relatives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lazytpu.engine.sizes.graphs import known_of
from lazytpu.engine.sizes.marked import Marked
from lazytpu.engine.sizes.relatives import ALIKE, shared
from lazytpu.engine.sizes.skeletons import LEAST, SIZE, Integers, trace_apart
from lazytpu.engine.sizes.templates import Sized, Template
from lazytpu.engine.sizes.unexpected import LookingFor
from lazytpu.ports import Inference
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import State

MOST = 256  # sequences of ops whose templates are remembered, the newest
SAME = 16  # templates of one, the newest
RELATIVES = 4
"Of one template, those that have most of its records."
SKELETONS = 65_536  # of records


class Templates:
    """All templates, and the sizes of the states that were looked at."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._templates: dict[Any, dict[bytes, Template]] = {}
        self._skeletons: dict[Any, int] = {}
        self._known: WeakKeyDictionary[State, Sized] = WeakKeyDictionary()

    def find(
        self, state: State, parameters: Callable[[], Collection[int]], marked: Callable[[], Marked | None]
    ) -> Sized | None:
        """The sizes of a trace that ends at `state`, if it is one of many sizes. The sizes of the slots that are
        `parameters` do not vary: those of another model make another template. `marked` says what somebody said will
        vary. The caller lets one thread in."""
        known = self._known.get(state)
        if known is not None:
            return known
        records = state.records()
        if len(self._skeletons) > SKELETONS:  # templates are known by their numbers
            self._skeletons.clear()
            self._templates.clear()
        integers, ids = Integers([], [], alike=True), list[int]()
        for skeleton in trace_apart(records, integers):
            ids.append(self._skeletons.setdefault(skeleton, len(self._skeletons)))
        layouts = Slots(records).layouts
        ops = tuple(ids), tuple([(slot, layouts[slot].key) for slot in sorted(parameters()) if slot in layouts])
        try:
            numbers = np.array(integers.values, dtype=np.int64)
        except OverflowError:  # an integer of 64 bits without sign
            return None
        kinds = np.array(integers.kinds, dtype=np.int8)
        same = self._templates.get(ops)
        if same is None:
            while len(self._templates) >= MOST:
                del self._templates[next(iter(self._templates))]
            same = self._templates[ops] = {}
        key = np.minimum(numbers[kinds == SIZE], LEAST).tobytes()
        template = same.get(key)
        if template is None:
            while len(same) >= SAME:
                del same[next(iter(same))]
            others = same.values()
            template = Template(records, kinds, [numbers], self._inference, same=others, relatives=self._relatives)
            self._begin(template, state, marked)
            same[key] = template
        found = template.bucket_of(numbers, state)
        if found is None or found.bucket.single:
            return None
        self._known[state] = found
        return found

    @staticmethod
    def _begin(template: Template, state: State, marked: Callable[[], Marked | None]) -> None:
        """Learn from one trace alone what varies, if somebody knows."""
        with LookingFor("sizes of compiled graphs"):
            template.tell(known_of(state, template.inference))
        if not template.forms:
            with LookingFor("marked sizes"):
                said = marked()
                if said is not None:
                    template.mark(said)
        if not template.forms:
            with LookingFor("relatives"):
                template.learn_of_relatives()

    def _every(self) -> Iterator[Template]:
        for same in self._templates.values():
            yield from same.values()

    def _relatives(self, template: Template) -> Iterable[Template]:
        """Those with forms whose traces have most of the records of one."""
        others = [other for other in self._every() if other.forms and other is not template]
        near = [(shared(template.places, other.places), other) for other in others]
        near.sort(key=lambda each: -each[0])
        return [other for share, other in near[:RELATIVES] if share >= ALIKE]

    def forget_programs(self) -> None:
        """The next trace of each bucket compiles one."""
        for bucket in (b for template in self._every() for forms in template.forms for b in forms.buckets.values()):
            bucket.plan.programs.clear()
            bucket.plan.jobs.clear()
            bucket.refused.clear()
