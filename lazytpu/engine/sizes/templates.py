"""Templates: traces that differ in sizes alone, and the buckets of sizes that share a program.

The first trace of a skeleton gets a program of its own, unless its relatives vary (`relatives`). The second one that
differs in integers alone makes forms of these (`fitting`), and from then on a trace whose integers these forms give
belongs to a bucket: the program is made for the records at the bound of the bucket, with the sizes as numbers of the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.derived import fit_derived
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.kernels import OtherKernel, with_kernels
from lazytpu.engine.sizes.limits import Views
from lazytpu.engine.sizes.marked import Marked
from lazytpu.engine.sizes.ranges import bucketed, within_tables
from lazytpu.engine.sizes.relatives import Relative, grown, smaller_ones, transferred
from lazytpu.engine.sizes.results import LARGEST
from lazytpu.engine.sizes.skeletons import BEGIN, trace_together, with_parts
from lazytpu.engine.sizes.work import costs_little, work
from lazytpu.ir.forms import Range
from lazytpu.ir.symbolic import Derivation
from lazytpu.ports import Inference
from lazytpu.trace.trie import CutPlan, Record, State

SAMPLES = 6  # samples of one template, the newest
KINDS = 4  # forms of one template, the newest


def no_relatives(template: Template) -> Iterable[Template]:
    """Nothing else was seen."""
    return ()


class OneSize(Exception):
    """There is no program of many sizes for a trace: they stay part of the program. The message names the op, the line
    and the reason."""


@dataclass(eq=False)
class Bucket:
    """The traces of a template whose sizes are in these ranges. `records` are those at the greatest sizes, and `state`
    ends a trace of them. `plan` has the programs; `refused` says why there can be none, by the live slots."""

    template: Template
    forms: Forms
    symbols: dict[str, Range]
    state: State
    plan: CutPlan = field(default_factory=lambda: CutPlan((), ()))
    refused: dict[tuple[int, ...], str] = field(default_factory=dict[tuple[int, ...], str])
    on_host: Any = None
    "How often its traces may still run on the host, once one of them did (`lazytpu.engine.cutting.on_host`)."

    def records(self) -> list[Record]:
        """The records at the greatest sizes. Custom kernels are in them for these once `settle` was called."""
        return self.state.records()

    def settle(self) -> None:
        """Put the custom kernels for the greatest sizes into the records. Raises OneSize where there are none."""
        state, records = self.state, self.records()
        try:
            settled = with_kernels(records)
        except OtherKernel as error:
            raise OneSize(str(error)) from error
        if settled is not records:
            self.state = State(None, tuple(settled), None, state.slots, state.inputs, state.numbers)

    def at(self, sizes: Mapping[str, int]) -> list[Record]:
        """The records at other sizes, with the custom kernels of the template."""
        return self.forms.at(sizes)

    @property
    def derived(self) -> Mapping[str, Range]:
        """The sizes over which the import of its program is derived: all of them."""
        return self.symbols

    def symbolic(self, derivation: Derivation) -> list[Record]:
        """The records whose sizes carry their forms."""
        return self.forms.symbolic(derivation)

    @cached_property
    def spacious(self) -> bool:
        """Whether a run at the greatest sizes costs little more than one at the least."""
        return costs_little(self.records(), self.at({name: low for name, (low, _) in self.symbols.items()}))

    @property
    def begins(self) -> frozenset[str]:
        """The symbols that are no sizes, but say where a view begins."""
        return self.template.begins(self.forms.varying)

    @property
    def single(self) -> bool:
        """Whether it has one size alone, so that the exact program serves as many."""
        return all(low == high for low, high in self.symbols.values())

    @property
    def text(self) -> str:
        """What the forms are, for the digest of its programs."""
        return f"sizes {self.symbols} {self.forms.varying}"


@dataclass(frozen=True, slots=True)
class Sized:
    """A trace of a bucket, with its sizes and its own records."""

    bucket: Bucket
    sizes: dict[str, int]
    records: list[Record]

    @property
    def waste(self) -> float:
        """The part of a run that padding takes: of its work where that is known, else of a value with all sizes."""
        if self.bucket.spacious:
            return 1 - work(self.bucket.at(self.sizes)) / max(1.0, work(self.bucket.records()))
        begins = self.bucket.begins
        return 1 - prod(self.sizes[name] / top for name, (_, top) in self.bucket.symbols.items() if name not in begins)

    @property
    def text(self) -> str:
        """The sizes, for `lazytpu.explain()`."""
        parts: list[str] = []
        for name, (low, top) in self.bucket.symbols.items():
            size = self.sizes[name]
            if name in self.bucket.begins:
                parts.append(f"{name} {low}..{top}, where a view begins, now {size}")
                continue
            parts.append(f"{name} {low}..{top}, now {size}, {round(100 * (top - size) / top)} % padding")
        return "one program for sizes " + "; ".join(parts)


@dataclass(eq=False)
class Forms:
    """What varies between traces of a template, or between some of them, and their buckets. `records` are those of one
    of them."""

    varying: Varying
    records: list[Record]
    guessed: bool = False
    "Whether it has more symbols than the samples show, as others vary so, or compiled graphs know that they do."
    buckets: dict[Any, Bucket] = field(default_factory=dict[Any, Bucket])
    by_spreads: dict[tuple[int, ...], list[Bucket]] = field(default_factory=dict[tuple[int, ...], list[Bucket]])
    "The buckets whose bounds lie so far apart, for each symbol; one may be in several lists."

    def at(self, sizes: Mapping[str, int]) -> list[Record]:
        """The records at other sizes."""
        return trace_together(self.records, iter(self.varying.at(sizes)))

    def symbolic(self, derivation: Derivation) -> list[Record]:
        """The records whose sizes carry their forms."""
        return trace_together(self.records, iter(self.varying.symbolic(derivation)))

    @cached_property
    def views(self) -> Views:
        """The views of its traces."""
        derivation = Derivation(dict.fromkeys(self.varying.symbols, (0, LARGEST)))
        return Views(self.symbolic(derivation), derivation.form_of)

    def among(self, sizes: Mapping[str, int], spreads: tuple[int, ...]) -> Bucket | None:
        """The bucket of these spreads that has these sizes, if one was made."""
        for bucket in self.by_spreads.get(spreads, ()):
            if all(low <= sizes[name] <= high for name, (low, high) in bucket.symbols.items()):
                return bucket
        return None


@dataclass(eq=False)
class Template:
    """Traces of one skeleton: the `records` of one of them, the integers of some, and the kinds of these. There may be
    no forms of all of them: then there are several."""

    records: list[Record]
    kinds: np.ndarray
    samples: list[np.ndarray]
    inference: Inference
    forms: list[Forms] = field(default_factory=list[Forms])
    same: Collection[Template] = ()
    "Those of the same ops, with other sizes of 0 and 1; it is one of them."
    relatives: Callable[[Template], Iterable[Template]] = no_relatives
    "Those of other traces that have many of its records."
    guessing: bool = True
    "Whether relatives are asked: not when that went wrong, or somebody said what varies."
    limits: dict[int, tuple[int, int | None]] = field(default_factory=dict[int, tuple[int, "int | None"]])
    "The least and the greatest size that somebody said the integers at some positions will have."

    def bucket_of(self, integers: np.ndarray, state: State) -> Sized | None:
        """The bucket of a trace with these integers that ends at `state`, with its sizes. It may teach the template its
        forms. None for the first of its kind, unless that shows them, and where a size is too small."""
        with self._whole():
            self._forget_refused()
            known = self._known(integers)
            if known is not None and self._settled(known[0]):
                return self._sized(*known, state)
            if not any((sample == integers).all() for sample in self.samples):
                known = self._learned(integers, known, state)
            return None if known is None else self._sized(*known, state)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Undo what was changed where something is raised inside."""
        before = self.samples, self.records, self.forms, self.guessing, self.limits
        self.samples, self.limits = list(self.samples), dict(self.limits)
        try:
            yield
        except BaseException:
            self.samples, self.records, self.forms, self.guessing, self.limits = before
            raise

    def _forget_refused(self) -> None:
        """What was guessed of forms whose program is refused says nothing: samples alone do from now on."""
        left = [forms for forms in self.forms if not (forms.guessed and any(b.refused for b in forms.buckets.values()))]
        if len(left) < len(self.forms):
            self.forms, self.guessing = left, False

    def tell(self, varying: Varying | None) -> None:
        """Take the forms that compiled graphs know, if any do."""
        if varying is not None and varying.solved(self.samples[-1]) is not None:
            self.forms, self.guessing = [Forms(varying, self.records, guessed=True)], False

    def mark(self, marked: Marked) -> None:
        """Learn forms from what somebody said will vary."""
        with self._whole():
            shown = marked.shown(self.inference)
            if shown is not None:
                varying, self.limits = shown
                self.forms, self.guessing = [Forms(varying, self.records)], False

    def learn_of_relatives(self) -> None:
        """Learn forms of the first trace from what varies in others."""
        with self._whole():
            forms = self._of_relatives(self.records) or self._grown()
            if forms is not None:
                self.forms = [forms]

    @cached_property
    def places(self) -> frozenset[Any]:
        """The ops and lines of its records."""
        return frozenset(Relative(self.records).places)

    def _of_relatives(self, records: list[Record]) -> Forms | None:
        """The forms of a relative for a trace of these records, if they are those of all samples; those that have the
        most symbols."""
        here, found = Relative(records), list[Forms]()
        for other in self.relatives(self) if self.guessing else ():
            for forms in other.forms:
                made = transferred(forms.varying, Relative(forms.records), here, self.inference)
                if made is not None and all(made[0].solved(sample) is not None for sample in self.samples):
                    found.append(Forms(*made, guessed=True))
        return max(found, key=lambda forms: len(forms.varying.symbols), default=None)

    def _grown(self) -> Forms | None:
        """Forms that the samples of other templates of the same ops show, which have 0 or 1 of what varies there, or of
        what is 2 now."""
        integers = self.samples[-1]
        for other in self.same:
            others = smaller_ones(integers, self.kinds, other.samples) if other is not self else ()
            if others and (len(others) > 1 or grown(integers, self.kinds, others[0])):
                self.records = with_parts(self.records, other.records)
                varying = self._fit([*others, integers])
                if varying is not None and varying.symbols and varying.solved(integers) is not None:
                    return Forms(varying, self.records, guessed=True)
        return None

    def begins(self, varying: Varying) -> frozenset[str]:
        """The symbols of forms that are places where views begin."""
        return frozenset(name for name, at in varying.symbols.items() if self.kinds[at] == BEGIN)

    def _known(self, integers: np.ndarray) -> tuple[Forms, dict[str, int]] | None:
        for forms in self.forms:
            sizes = forms.varying.solved(integers)
            if sizes is not None:
                return forms, sizes
        return None

    def _fit(self, samples: Sequence[np.ndarray], apart: bool = False) -> Varying | None:
        return fit_derived(samples, self.kinds, self.records, self.inference, apart)

    def _settled(self, forms: Forms) -> bool:
        """What two samples show as two symbols may be one and a form of it, such as half: a third one tells."""
        return forms.guessed or self._sizes(forms.varying) < 2 or len(self.samples) == SAMPLES

    def _sizes(self, varying: Varying) -> int:
        """The number of symbols that are sizes: the others make no padding."""
        return len(varying.symbols) - len(self.begins(varying))

    def _learned(
        self, integers: np.ndarray, known: tuple[Forms, dict[str, int]] | None, state: State
    ) -> tuple[Forms, dict[str, int]] | None:
        """Forms that these integers show, if those that are `known` do not fit them or have more symbols."""
        self.samples = [*self.samples, integers][-SAMPLES:]
        self.records = with_parts(self.records, state.records())
        shown, others = self._fit(self.samples), list[Forms]()
        if known is not None:
            if shown is None or self._sizes(shown) >= self._sizes(known[0].varying):
                return known
            found, others = Forms(shown, self.records), self.forms
        else:
            found = self._with_most_symbols(shown, state)
            if found is None:  # not a form yet: what came first may be another kind
                shown, others = self._fit(self.samples[-2:]), self.forms
                found = None if shown is None else Forms(shown, self.records)
        sizes = None if found is None else found.varying.solved(integers)
        if found is None or sizes is None:
            return known
        self.forms = [found, *others][:KINDS]
        return found, sizes

    def _with_most_symbols(self, shown: Varying | None, state: State) -> Forms | None:
        """The forms of all samples, where new ones are needed: those that they have `shown`, or that relatives have. If
        this is not the first time, more varies than was seen, and what may vary alone does."""
        found = [self._of_relatives(with_parts(state.records(), self.records))]
        if self.forms and self.guessing and (apart := self._fit(self.samples, apart=True)) is not None:
            found.append(Forms(apart, self.records, guessed=True))
        if shown is not None:
            found.append(Forms(shown, self.records))
        return max((forms for forms in found if forms is not None), key=lambda f: self._sizes(f.varying), default=None)

    def _sized(self, forms: Forms, sizes: dict[str, int], state: State) -> Sized | None:
        """The bucket of the fewest bounds whose padding costs little."""
        allowed = buckets.spreads(len(sizes))
        alike = [(spread,) * len(sizes) for spread in allowed]
        each = product(allowed, repeat=len(sizes)) if len(sizes) <= buckets.MOST else alike
        for spreads in sorted(each, key=prod, reverse=True):
            bucket = forms.among(sizes, spreads)
            if bucket is None:
                symbols = self._ranges(forms, sizes, spreads)
                if symbols is None:
                    continue
                bucket = self._bucket(forms, symbols, state)
                forms.by_spreads.setdefault(spreads, []).append(bucket)
            if max(spreads) == allowed[-1] or bucket.spacious:
                return Sized(bucket, sizes, state.records())
        return None

    def _ranges(self, forms: Forms, sizes: Mapping[str, int], spreads: Sequence[int]) -> dict[str, Range] | None:
        """The sizes of the bucket that these are in; None where one is too small for any, or views do not fit."""
        symbols = bucketed(forms.varying, self.kinds, sizes, spreads, self.limits)
        if symbols is None:
            return None
        here = forms.views.ends(sizes)
        return within_tables(sizes, symbols, self.begins(forms.varying), lambda at: forms.views.fit(at, here))

    def _bucket(self, forms: Forms, symbols: dict[str, Range], state: State) -> Bucket:
        key = tuple(symbols.items())
        found = forms.buckets.get(key)
        if found is None:
            found = Bucket(self, forms, symbols, state)
            records = found.at({name: high for name, (_, high) in symbols.items()})
            found.state = State(None, tuple(records), None, state.slots, state.inputs, state.numbers)
            forms.buckets[key] = found
        return found
