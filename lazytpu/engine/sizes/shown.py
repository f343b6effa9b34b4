"""Forms of integers that torch agrees with.

Two samples fit many forms. What a form of a result's size gets wrong, torch shows at once: it is asked for the results
of the records at other sizes, and its answer is one more sample. Where something is rounded down, it is asked at a size
with each rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lazytpu.engine.sizes.fitting import Varying, fit
from lazytpu.engine.sizes.skeletons import BEGIN, Integers, Layouts, dense_strides, trace_apart, trace_together
from lazytpu.ir.forms import Form, symbol
from lazytpu.ports import Inference
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout

QUESTIONS = 8
"How often forms of one template are made anew by what torch says."
STEPS = (3, 8, 15, 25, 44, 79)
"How much larger the sizes are at which it is: no sum of some is another, or twice another."


def fit_shown(
    samples: Sequence[np.ndarray],
    kinds: np.ndarray,
    records: Sequence[Record],
    inference: Inference | None,
    apart: bool = False,
) -> Varying | None:
    """As `fit`, where torch is asked what the results of the records are at other sizes. Its answers are believed as
    long as they have forms. With `apart` what does not follow from other numbers is none of them but for a number."""
    follows = None
    if apart:
        trace_apart(records, found := Integers([], []))
        follows = np.array(found.made, dtype=np.int64)
    first = made = fit(samples, kinds, rising=True, made=follows)
    if inference is None:
        return first
    shown = list(samples)
    for _ in range(QUESTIONS):
        if made is None:
            return first
        rounded = max((size.period for size in made.varying), default=1)
        answers = (_Question(made, kinds, records, inference, beyond).answer() for beyond in range(rounded))
        answer = next((each for each in answers if each is not None), None)
        if answer is None:
            return made
        shown.append(answer)
        made = fit(shown, kinds, rising=True, made=follows)
    return first if made is None else made


def agrees(varying: Varying, kinds: np.ndarray, records: Sequence[Record], inference: Inference) -> bool:
    """Whether torch says nothing against these forms of records."""
    return _Question(varying, kinds, records, inference).answer() is None


@dataclass
class _Question:
    """What the results of records are at larger sizes of the symbols of `varying`, and these some elements `beyond`."""

    varying: Varying
    kinds: np.ndarray
    records: Sequence[Record]
    inference: Inference
    beyond: int = 0
    differs: tuple[int, int] | None = None
    "The position of the first integer that is not what its form says, and what torch says."

    def answer(self) -> np.ndarray | None:
        """The integers there, if torch says that a form is wrong, or that a symbol is none, as it follows from the
        others. None where it agrees, and where it cannot say: a view may leave its tensor there. What comes after a
        wrong size it may refuse, so it is asked again with what it said of that."""
        symbols = zip(self.varying.symbols.items(), STEPS, strict=False)
        sizes = {
            name: int(self.varying.fixed[at]) + (1 if self.kinds[at] == BEGIN else step + self.beyond)
            for (name, at), step in symbols
        }
        follows, told, last = list[str](), dict[Form, int](), None
        while True:
            integers = self._ask(sizes, told)
            if self.differs is None:
                return integers if follows or told else None
            last = last if integers is None else integers
            at, number = self.differs
            size = next((size for size, positions in self.varying.varying.items() if at in positions), None)
            if size is None or size in told:
                return last
            name = next((name for name in size.symbols if (size - symbol(name)).number is not None), None)
            if name is None or name in follows:
                told[size] = number
            else:
                sizes[name] += number - self.varying.at(sizes)[at]
                follows.append(name)

    def _ask(self, sizes: dict[str, int], told: Mapping[Form, int]) -> np.ndarray | None:
        """The integers at these sizes, where those of results are torch's, and some forms what it has `told`."""
        self.differs, ends, place = None, self._ends(), iter(range(len(self.records)))

        def outs(record: Record, layouts: Layouts) -> Sequence[Layout | None]:
            found, end = list(map(_ordered, record.outs, self.inference.outs(record, layouts))), ends[next(place)]
            if self.differs is None:
                own, there = _shapes(record.outs), _shapes(found)
                both = enumerate(zip(own, there, strict=True), end - len(own))
                self.differs = next(((at, n) for at, (form, n) in both if form != n), None)
            return found

        integers = Integers([], [])
        try:
            made = trace_together(self.records, iter(self._integers(sizes, told)), outs)
            if trace_apart(made, integers) != trace_apart(self.records, Integers([], [])):
                return None
            return np.array(integers.values, dtype=np.int64)
        except Exception:  # noqa: BLE001  (whatever torch raises where ops cannot have these sizes, or overflows there)
            return None

    def _integers(self, sizes: Mapping[str, int], told: Mapping[Form, int]) -> list[int]:
        """What the forms give at these sizes; multiples of those that torch has told of follow that."""
        integers = self.varying.at(sizes)
        for size, positions in self.varying.varying.items():
            for of, number in told.items():
                times = _times(size, of)
                for position in positions.tolist() if times else ():
                    integers[position] = number * times + ((size - of * times).number or 0)
        return integers

    def _ends(self) -> list[int]:
        """How many integers there are up to the end of each record: the last ones are sizes of results."""
        ends = list[int]()
        trace_apart(self.records, Integers([], []), ends)
        return ends


def _times(size: Form, of: Form) -> int:
    """How often a form is in another one, which is that and a number; 0 where it is something else."""
    (atoms, factor), *_ = of.terms
    times = dict(size.terms).get(atoms, 0) // factor
    return 0 if (size - of * times).number is None else times


def _ordered(own: Layout | None, there: Layout | None) -> Layout | None:
    """What torch says of a result, in memory as the records have it: where dimensions of one element lie is open."""
    if own is None or there is None or own.shape == there.shape:
        return own
    return Layout(there.dtype, there.shape, dense_strides(there.shape, own.memory_order))


def _shapes(outs: Sequence[Layout | None]) -> list[int]:
    return [n for layout in outs if layout is not None for n in layout.shape]
