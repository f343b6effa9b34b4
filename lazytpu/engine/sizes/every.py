"""The registry of all templates: finds the template of a trace, and the templates related to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lazytpu.engine.errors.unexpected import looking_for
from lazytpu.engine.sizes.graphs import known_of
from lazytpu.engine.sizes.growth import Growth
from lazytpu.engine.sizes.marked import Marked
from lazytpu.engine.sizes.relatives import ALIKE, shared
from lazytpu.engine.sizes.skeletons import SIZE, Integers, trace_apart
from lazytpu.engine.sizes.templates import Sized, Template
from lazytpu.ir.symbolic import MIN_SYMBOL
from lazytpu.ports import Inference
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import State

MOST = 512  # sequences of ops whose templates are remembered
SAME = 16  # templates of one, the newest
RELATIVES = 4
"""Greatest number of relatives of a template: those that share most of its records."""
SKELETONS = 65_536  # of records


class Templates:
    """All templates, and the bucket and sizes of each state that was looked up."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.growth = Growth(inference)
        self._templates: dict[Any, dict[bytes, Template]] = {}
        self._skeletons: dict[Any, int] = {}
        self._known: WeakKeyDictionary[State, Sized] = WeakKeyDictionary()

    def find(
        self, state: State, parameters: Callable[[], Collection[int]], marked: Callable[[], Marked | None]
    ) -> Sized | None:
        """Return the bucket and sizes of the trace that ends at `state`, or None if it belongs to no bucket.

        The sizes of the slots in `parameters` are constant: another model has another template. `marked` returns the
        dimensions that the user marked as varying. The caller must hold the lock that admits one thread.
        """
        cached = self._known.get(state)
        if cached is not None:
            return cached
        records = state.records()
        if len(self._skeletons) > SKELETONS:  # templates are keyed by these numbers
            self._skeletons.clear()
            self._templates.clear()
        # Find the templates with the same structure and parameters.
        integers, ids = Integers([], [], alike=True), list[int]()
        for skeleton in trace_apart(records, integers):
            ids.append(self._skeletons.setdefault(skeleton, len(self._skeletons)))
        layouts = Slots(records).layouts
        ops = tuple(ids), tuple([(slot, layouts[slot].key) for slot in sorted(parameters()) if slot in layouts])
        try:
            numbers = np.array(integers.values, dtype=np.int64)
        except OverflowError:  # an unsigned 64-bit integer
            return None
        kinds = np.array(integers.kinds, dtype=np.int8)
        same = self._templates[ops] = self._templates.pop(ops, {})  # the last is the one that was used last
        if len(self._templates) > MOST:
            del self._templates[next(iter(self._templates))]
        # Among these, find the template with the same sizes of 0 and 1.
        key = np.minimum(numbers[kinds == SIZE], MIN_SYMBOL).tobytes()
        template = same.get(key)
        if template is None:
            while len(same) >= SAME:
                del same[next(iter(same))]
            siblings = same.values()
            template = Template(records, kinds, [numbers], self._inference, same=siblings, relatives=self._relatives)
            self._begin(template, state, marked)
            same[key] = template
        sized = template.bucket_of(numbers, state)
        if sized is None:
            return None
        self.growth.learn(state, template, sized.bucket.forms, sized.sizes)
        if sized.bucket.single:
            return None
        self._known[state] = sized
        return sized

    @staticmethod
    def _begin(template: Template, state: State, marked: Callable[[], Marked | None]) -> None:
        """Learn from the first trace alone: from compiled graphs, else from marked dimensions, else from relatives."""
        sources = {
            "sizes of compiled graphs": lambda: template.tell(known_of(state, template.inference)),
            "marked sizes": lambda: template.mark(marked()),
            "relatives": template.learn_of_relatives,
        }
        for place, learn in sources.items():
            if not template.forms:
                with looking_for(place), template.whole():
                    learn()

    def _every(self) -> Iterator[Template]:
        """Iterate over all templates."""
        for same in self._templates.values():
            yield from same.values()

    def _relatives(self, template: Template) -> Iterable[Template]:
        """Return the templates with size expressions that share most records with `template`, most similar first."""
        candidates = [candidate for candidate in self._every() if candidate.forms and candidate is not template]
        near = [(shared(template.places, candidate.places), candidate) for candidate in candidates]
        near.sort(key=lambda each: -each[0])
        return [candidate for share, candidate in near[:RELATIVES] if share >= ALIKE]

    def forget_programs(self) -> None:
        """Drop all programs of all buckets, so that the next trace of each compiles anew."""
        for bucket in (b for template in self._every() for forms in template.forms for b in forms.buckets.values()):
            bucket.plan.programs.clear()
            bucket.plan.jobs.clear()
            bucket.refused.clear()
