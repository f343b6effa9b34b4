"""Templates: traces that differ in sizes only, and the buckets of sizes that share a program.

The first trace of a template gets an exact program, unless its relatives vary (`relatives`). The second one, which
differs only in integers, yields size expressions (`fitting`). From then on, a trace whose integers the expressions give
belongs to a bucket. The bucket's program is compiled at its bound and takes the sizes as run-time numbers.
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

from lazytpu.aten.views.parts import NO_PARTS, Parts
from lazytpu.engine.recompiles.history import Making
from lazytpu.engine.recompiles.wording import at
from lazytpu.engine.sizes import buckets
from lazytpu.engine.sizes.derived import fit_derived
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.limits import Views, moving_views
from lazytpu.engine.sizes.marked import Marked
from lazytpu.engine.sizes.ranges import bucketed, within_tables
from lazytpu.engine.sizes.relatives import Relative, grown, smaller_ones, transferred
from lazytpu.engine.sizes.results import LARGEST
from lazytpu.engine.sizes.skeletons import BEGIN, record_of, trace_together, with_parts
from lazytpu.engine.sizes.work import costs_little, work
from lazytpu.ir.forms import Form, Range, form
from lazytpu.ir.symbolic import Derivation, Size
from lazytpu.ports import Inference
from lazytpu.trace.trie import CutPlan, Record, State

SAMPLES = 6  # samples of one template, the newest
KINDS = 4  # forms of one template, the newest


@dataclass(eq=False)
class Bucket:
    """The traces of a template whose sizes lie in the ranges `symbols`.

    `ending` ends a trace of them. `plan` has the programs. `refused` maps the live slots to the reason why they can
    have no program.
    """

    template: Template
    forms: Forms
    symbols: dict[str, Range]
    ending: State
    plan: CutPlan = field(default_factory=lambda: CutPlan((), ()))
    refused: dict[tuple[int, ...], str] = field(default_factory=dict[tuple[int, ...], str])
    makings: list[Making] = field(default_factory=list[Making])
    """The recompile entries of its programs."""
    on_host: Any = None
    """The remaining number of host runs of its traces, once one ran on the host (`lazytpu.engine.cutting.on_host`)."""

    @property
    def greatest(self) -> dict[str, int]:
        """The greatest sizes."""
        return {name: high for name, (_, high) in self.symbols.items()}

    @cached_property
    def state(self) -> State:
        """A state that ends a trace at the greatest sizes."""
        ending, records = self.ending, self.forms.at(self.greatest)
        return State(None, tuple(records), None, ending.slots, ending.inputs, ending.numbers)

    def records(self) -> list[Record]:
        """Return the records at the greatest sizes."""
        return self.state.records()

    @cached_property
    def spacious(self) -> bool:
        """Return whether a run at the greatest sizes costs little more than one at the least sizes."""
        least = {name: low for name, (low, _) in self.symbols.items()}
        return costs_little(self.forms.records, self.forms.work.at(self.greatest), self.forms.work.at(least))

    @property
    def begins(self) -> frozenset[str]:
        """Return the symbols that are starts of views rather than sizes."""
        return self.template.begins(self.forms.varying)

    @property
    def single(self) -> bool:
        """Return whether the bucket has a single size, so that an exact program serves it as well."""
        return all(low == high for low, high in self.symbols.values())

    @property
    def text(self) -> str:
        """Return the ranges and size expressions as text, for the digest of its programs."""
        return f"sizes {self.symbols} {self.forms.varying}"


@dataclass(frozen=True, slots=True)
class Sized:
    """A trace of a bucket, with its sizes and its exact records."""

    bucket: Bucket
    sizes: dict[str, int]
    records: list[Record]

    @property
    def waste(self) -> float:
        """Return the share of a run spent on padding: of its work if that is known, else of the product
        of all sizes."""
        if self.bucket.spacious:
            cost = self.bucket.forms.work
            return 1 - cost.at(self.sizes) / max(1, cost.at(self.bucket.greatest))
        begins = self.bucket.begins
        return 1 - prod(self.sizes[name] / top for name, (_, top) in self.bucket.symbols.items() if name not in begins)

    @property
    def text(self) -> str:
        """Return the sizes as text for `lazytpu.explain()`."""
        texts: list[str] = []
        for name, (low, top) in self.bucket.symbols.items():
            size = self.sizes[name]
            if name in self.bucket.begins:
                texts.append(f"{name} {low}..{top}, where a view begins, now {size}")
                continue
            texts.append(f"{name} {low}..{top}, now {size}, {round(100 * (top - size) / top)} % padding")
        return "one program for sizes " + "; ".join(texts)


@dataclass(eq=False)
class Forms:
    """Size expressions of some or all traces of a template, and the buckets. `records` are the records of one such
    trace."""

    varying: Varying
    records: list[Record]
    guessed: bool = False
    """Whether the samples do not show all symbols: relatives or compiled graphs do."""
    because: str = ""
    """Why earlier expressions do not give these traces; empty if there were none."""
    buckets: dict[Any, Bucket] = field(default_factory=dict[Any, Bucket])
    by_spreads: dict[tuple[int, ...], list[Bucket]] = field(default_factory=dict[tuple[int, ...], list[Bucket]])
    """The buckets by the spacing of bounds of each symbol; a bucket may be in several lists."""

    def at(self, sizes: Mapping[str, int]) -> list[Record]:
        """Return the records at these sizes."""
        return trace_together(self.records, iter(self.varying.at(sizes)))

    def symbolic(self, derivation: Derivation) -> list[Record]:
        """Return the records with symbolic sizes."""
        return trace_together(self.records, map(derivation.size, self.varying.forms))

    @cached_property
    def _at_any_sizes(self) -> list[Record]:
        """The records with symbolic sizes of any value."""
        return self.symbolic(Derivation(dict.fromkeys(self.varying.symbols, (0, LARGEST))))

    @cached_property
    def parts(self) -> Parts:
        """The parts of tensors that its traces read and write at run-time starts."""
        return Parts(moving_views(self._at_any_sizes), self.varying.joined) if self.varying.parts else NO_PARTS

    @cached_property
    def views(self) -> Views:
        """The views of its traces."""
        return Views(self._at_any_sizes, self.parts.views)

    @cached_property
    def work(self) -> Form:
        """The cost of a run."""
        cost = work(self._at_any_sizes)
        return cost.form if isinstance(cost, Size) else form(cost)

    def among(self, sizes: Mapping[str, int], spreads: tuple[int, ...]) -> Bucket | None:
        """Return the bucket with these spacings that contains the sizes, or None if it was not created yet."""
        for bucket in self.by_spreads.get(spreads, ()):
            if all(low <= sizes[name] <= high for name, (low, high) in bucket.symbols.items()):
                return bucket
        return None


@dataclass(eq=False)
class Template:
    """Traces of one structure.

    `records` are the records of one of them, `samples` the integers of some, and `kinds` the kinds of the integers. If
    no expressions fit all samples, `forms` has several sets of them.
    """

    records: list[Record]
    kinds: np.ndarray
    samples: list[np.ndarray]
    inference: Inference
    forms: list[Forms] = field(default_factory=list[Forms])
    same: Collection[Template] = ()
    """The templates with the same ops and other sizes of 0 and 1, this one included."""
    relatives: Callable[[Template], Iterable[Template]] = lambda _: ()
    """Returns templates of other op sequences that share many records."""
    guessing: bool = True
    """Whether to consult relatives: not after their expressions were refused, or if the varying sizes are known."""
    parts: bool = True
    """Whether sizes may be those of parts (`has_parts`): not after the program of such expressions was refused."""
    limits: dict[int, tuple[int, int | None]] = field(default_factory=dict[int, tuple[int, "int | None"]])
    """The least and the greatest value of integers that the user marked, by position."""

    def bucket_of(self, integers: np.ndarray, state: State) -> Sized | None:
        """Return the bucket and sizes of the trace with these integers that ends at `state`. Learn from it if it is
        new.

        Return None for the first trace of its kind, unless its expressions are known, and if a size is too small to be
        symbolic.
        """
        with self.whole():
            self._forget_refused()
            solved = self._known(integers)
            if solved is not None and self._settled(solved[0]):
                return self._sized(*solved, state)
            if not any((sample == integers).all() for sample in self.samples):
                solved = self._learned(integers, solved, state)
            return None if solved is None else self._sized(*solved, state)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Restore the template if the body raises."""
        before = self.samples, self.records, self.forms, self.guessing, self.parts, self.limits
        self.samples, self.limits = list(self.samples), dict(self.limits)
        try:
            yield
        except BaseException:
            self.samples, self.records, self.forms, self.guessing, self.parts, self.limits = before
            raise

    def _forget_refused(self) -> None:
        """Drop guessed expressions, and those of parts, whose program was refused; from now on use only observed
        sizes, and look for no parts."""
        uncertain = [forms for forms in self.forms if forms.guessed or forms.varying.parts]
        refused = [forms for forms in uncertain if any(bucket.refused for bucket in forms.buckets.values())]
        self.forms = [forms for forms in self.forms if forms not in refused]
        self.guessing = self.guessing and not any(forms.guessed for forms in refused)
        self.parts = self.parts and not any(forms.varying.parts for forms in refused)

    def tell(self, varying: Varying | None) -> None:
        """Adopt the size expressions that compiled graphs know, if they give the integers of the sample."""
        if varying is not None and varying.solved(self.samples[-1]) is not None:
            self.forms, self.guessing = [Forms(varying, self.records, guessed=True)], False

    def mark(self, marked: Marked | None) -> None:
        """Adopt the size expressions and limits of the dimensions that the user marked."""
        shown = None if marked is None else marked.shown(self.inference)
        if shown is not None:
            varying, self.limits = shown
            self.forms, self.guessing = [Forms(varying, self.records)], False

    def learn_of_relatives(self) -> None:
        """Adopt size expressions for the first trace from its relatives, or from templates with sizes of 0 or 1."""
        forms = self._of_relatives(self.records) or self._grown()
        self.forms = [] if forms is None else [forms]

    @cached_property
    def places(self) -> frozenset[Any]:
        """Return the ops and source lines of its records."""
        return frozenset(Relative(self.records).places)

    def _of_relatives(self, records: list[Record]) -> Forms | None:
        """Return the expressions with the most symbols that a relative has for these records and that fit all samples;
        else None."""
        this, candidates = Relative(records), list[Forms]()
        for relative in self.relatives(self) if self.guessing else ():
            for forms in relative.forms:
                moved = transferred(forms.varying, Relative(forms.records), this, self.inference)
                if moved is not None and all(moved[0].solved(sample) is not None for sample in self.samples):
                    candidates.append(Forms(*moved, guessed=True))
        return max(candidates, key=lambda forms: len(forms.varying.symbols), default=None)

    def _grown(self) -> Forms | None:
        """Return expressions fitted together with samples of the same ops in which a varying size is 0
        or 1; else None."""
        integers = self.samples[-1]
        for sibling in self.same:
            smaller = smaller_ones(integers, self.kinds, sibling.samples) if sibling is not self else ()
            if smaller and (len(smaller) > 1 or grown(integers, self.kinds, smaller[0])):
                self.records = with_parts(self.records, sibling.records)
                varying = self._fit([*smaller, integers])
                if varying is not None and varying.symbols and varying.solved(integers) is not None:
                    return Forms(varying, self.records, guessed=True)
        return None

    def begins(self, varying: Varying) -> frozenset[str]:
        """Return the symbols that are starts of views."""
        return frozenset(name for name, at in varying.symbols.items() if self.kinds[at] == BEGIN)

    def _known(self, integers: np.ndarray) -> tuple[Forms, dict[str, int]] | None:
        """Return the expressions that give these integers, with the sizes; None if none do."""
        for forms in self.forms:
            sizes = forms.varying.solved(integers)
            if sizes is not None:
                return forms, sizes
        return None

    def _fit(self, samples: Sequence[np.ndarray], apart: bool = False) -> Varying | None:
        return fit_derived(samples, self.kinds, self.records, self.inference, apart, self.parts)

    def _settled(self, forms: Forms) -> bool:
        """Return whether the symbols need no further samples.

        Two samples may show two symbols where one is an expression of the other, such as half; a third sample decides.
        """
        return forms.guessed or self._sizes(forms.varying) < 2 or len(self.samples) == SAMPLES

    def _sizes(self, varying: Varying) -> int:
        """Return the number of symbols that are sizes. Starts of views cause no padding."""
        return len(varying.symbols) - len(self.begins(varying))

    def _learned(
        self, integers: np.ndarray, known: tuple[Forms, dict[str, int]] | None, state: State
    ) -> tuple[Forms, dict[str, int]] | None:
        """Fit expressions with these integers as a new sample, and return them with the sizes.

        Keep `known` unless the new expressions have fewer symbols.
        """
        self.samples = [*self.samples, integers][-SAMPLES:]
        self.records = with_parts(self.records, state.records())
        shown, older = self._fit(self.samples), list[Forms]()
        because = "" if known is not None else self._contradiction(integers)
        if known is not None:
            if shown is None or self._sizes(shown) >= self._sizes(known[0].varying):
                return known
            fitted, older = Forms(shown, self.records), self.forms
        else:
            fitted = self._with_most_symbols(shown, state)
            if fitted is None:  # no expressions yet: the first samples may be of another kind
                shown, older = self._fit(self.samples[-2:]), self.forms
                fitted = None if shown is None else Forms(shown, self.records)
        sizes = None if fitted is None else fitted.varying.solved(integers)
        if fitted is None or sizes is None:
            return known
        fitted.because = because
        self.forms = [fitted, *older][:KINDS]
        return fitted, sizes

    def _contradiction(self, integers: np.ndarray) -> str:
        """Return which op has another integer than the newest expressions give; empty if there are none. Note it with
        the programs whose bucket has the sizes."""
        because = ""
        for forms in reversed(self.forms):
            position, sizes = forms.varying.contradicted(integers)
            record, expected = record_of(self.records, position), forms.varying.forms[position]
            because = f"{at(record)} has {integers[position]}, where earlier sizes suggested {expected}"
            for bucket in forms.buckets.values():
                if all(low <= sizes[name] <= high for name, (low, high) in bucket.symbols.items()):
                    for making in bucket.makings:
                        making.limit(because)
        return because

    def _with_most_symbols(self, shown: Varying | None, state: State) -> Forms | None:
        """Return the expressions with most symbols, of all samples or of relatives; None if there are none.

        If earlier expressions failed, more varies than was observed. Sizes that may be independent are then taken as
        independent.
        """
        candidates = [self._of_relatives(with_parts(state.records(), self.records))]
        if self.forms and self.guessing and (independent := self._fit(self.samples, apart=True)) is not None:
            candidates.append(Forms(independent, self.records, guessed=True))
        if shown is not None:
            candidates.append(Forms(shown, self.records))
        return max(
            (forms for forms in candidates if forms is not None), key=lambda f: self._sizes(f.varying), default=None
        )

    def _sized(self, forms: Forms, sizes: dict[str, int], state: State) -> Sized | None:
        """Return the trace in the bucket with the fewest bounds whose padding costs little."""
        allowed = buckets.spreads(len(sizes))
        uniform = [(spread,) * len(sizes) for spread in allowed]
        combinations = product(allowed, repeat=len(sizes)) if len(sizes) <= buckets.MOST else uniform
        for spreads in sorted(combinations, key=prod, reverse=True):
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
        """Return the size ranges of the bucket for these sizes; None if one is too small."""
        symbols = bucketed(forms.varying, self.kinds, sizes, spreads, self.limits)
        if symbols is None:
            return None
        ends = forms.views.ends(sizes)
        return within_tables(sizes, symbols, self.begins(forms.varying), lambda at: forms.views.fit(at, ends))

    def _bucket(self, forms: Forms, symbols: dict[str, Range], state: State) -> Bucket:
        """Return the bucket with these ranges, created if needed."""
        key = tuple(symbols.items())
        bucket = forms.buckets.get(key)
        if bucket is None:
            bucket = forms.buckets[key] = Bucket(self, forms, symbols, state)
        return bucket
