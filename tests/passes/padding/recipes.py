"""Random programs, drawn by hypothesis independently of the size, and built at any size.

A value has a symbolic shape, a tuple of size expressions over n. A step is a function that builds a value,
and the shape of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from lazytpu.ir.forms import Form, form, symbol
from tests.passes.padding.sized import argument_forms

N = symbol("n")
ARGUMENTS = ("f32[3,n]", "f32[n]", "i32[n,2]", "i32[3,n]", "f32[2,n,3]", "i1[3,n]", "i64[n]", "f32[n,n]")
LEAST, MOST = 2, 5


@dataclass(frozen=True)
class Drawn:
    """A value to be: its dtype, its sizes, and how it is built from the builder, the values before it, and n."""

    dtype: str
    shape: tuple[Form, ...]
    build: Callable[..., object] | None = None


class Recipe:
    """Steps, which a call builds; results are the last values."""

    def __init__(self) -> None:
        self.steps: list[Drawn] = []
        self.names: list[str] = []

    def __call__(self, b, *arguments, n):
        built = list(arguments)
        for step in self.steps:
            assert step.build is not None
            built.append(step.build(b, built, n))
        return built[len(arguments) :][-4:]

    def __repr__(self) -> str:
        return " ".join(self.names)


class _Drawing:
    def __init__(self, draw, values: list[Drawn]):
        self.draw, self.values = draw, values

    def pick(self, options):
        return self.draw(st.sampled_from(list(options)))

    def index(self, suits=lambda x: True) -> int | None:
        chosen = [i for i, x in enumerate(self.values) if suits(x)]
        return self.pick(chosen) if chosen else None

    def dim(self, x: Drawn) -> int:
        return self.draw(st.integers(0, len(x.shape) - 1))


def _at(shape, n):
    return [size.at({"n": n}) for size in shape]


def _numeric(x: Drawn) -> bool:
    return x.dtype in ("f32", "i32") and len(x.shape) > 0


def unary(d, i, x):
    name = "not" if x.dtype == "i1" else d.pick(("neg", "abs", "sign"))
    return Drawn(x.dtype, x.shape, lambda b, v, n: b.unary(name, v[i]))


def binary(d, i, x):
    j = d.index(lambda y: (y.dtype, y.shape) == (x.dtype, x.shape))
    name = "and" if x.dtype == "i1" else d.pick(("add", "sub", "max", "min"))
    return Drawn(x.dtype, x.shape, lambda b, v, n: b.binary(name, v[i], v[j]))


def number(d, i, x):
    value = d.pick((0, 1, 2))
    varies = d.pick((False, True))
    name = "and" if x.dtype == "i1" else d.pick(("add", "max"))

    def build(b, v, n):
        filled = value > 0 if x.dtype == "i1" else n + value if varies else value
        return b.binary(name, v[i], b.constant(filled, x.dtype, _at(x.shape, n)))

    return Drawn(x.dtype, x.shape, build)


def choose(d, i, x):
    j = d.index(lambda y: (y.dtype, y.shape) == (x.dtype, x.shape))
    how = d.pick(("LT", "EQ", "GE"))
    return Drawn(x.dtype, x.shape, lambda b, v, n: b.select(b.compare(how, v[i], v[j]), v[i], v[j]))


def positions(d, i, x):
    along = d.dim(x)
    dtype = d.pick(("i32", "f32"))
    return Drawn(dtype, x.shape, lambda b, v, n: b.iota(dtype, _at(x.shape, n), along))


def transpose(d, i, x):
    order = d.draw(st.permutations(range(len(x.shape))))
    return Drawn(x.dtype, tuple(x.shape[k] for k in order), lambda b, v, n: b.transpose(v[i], order))


def merge(d, i, x):
    if len(x.shape) < 2:
        return None
    k = d.draw(st.integers(0, len(x.shape) - 2))
    if x.shape[k].number is None and x.shape[k + 1].number is None:
        return None
    shape = (*x.shape[:k], x.shape[k] * x.shape[k + 1], *x.shape[k + 2 :])
    return Drawn(x.dtype, shape, lambda b, v, n: b.reshape(v[i], _at(shape, n)))


def split(d, i, x):
    k = d.dim(x)
    by = d.pick((2, 3))
    quotient = x.shape[k].divided(by)
    if quotient is None or not x.shape[k].terms:
        return None
    factors = (form(by), quotient) if d.pick((True, False)) else (quotient, form(by))
    shape = (*x.shape[:k], *factors, *x.shape[k + 1 :])
    return Drawn(x.dtype, shape, lambda b, v, n: b.reshape(v[i], _at(shape, n)))


def repeat(d, i, x):
    k, size = d.draw(st.integers(0, len(x.shape))), d.pick((form(2), N))
    shape = (*x.shape[:k], size, *x.shape[k:])
    dims = [j + (j >= k) for j in range(len(x.shape))]
    return Drawn(x.dtype, shape, lambda b, v, n: b.broadcast_in_dim(v[i], _at(shape, n), dims))


def cut(d, i, x):
    k = d.dim(x)
    size = x.shape[k]
    if size.range({"n": (LEAST, MOST)})[0] < 3:  # a full slice is no op, so that size would have fewer ops
        return None
    zero, unit, two = form(0), form(1), form(2)
    slices = ((zero, size - 1, 1), (unit, size, 1), (size - 1, size, 1), (zero, two, 1), (zero, size, 2))
    start, stop, step = d.pick(slices)
    shape = (*x.shape[:k], (stop - start + (step - 1)) // step, *x.shape[k + 1 :])

    def build(b, v, n):
        starts, limits = [0] * len(x.shape), _at(x.shape, n)
        starts[k], limits[k] = start.at({"n": n}), stop.at({"n": n})
        return b.slice(v[i], starts, limits, [step if j == k else 1 for j in range(len(x.shape))])

    return Drawn(x.dtype, shape, build)


def pad(d, i, x):
    k, low, high = d.dim(x), d.pick((0, 1, -1)), d.pick((0, 2, -1))
    if low + high < 0 and x.shape[k].range({"n": (LEAST, MOST)})[0] < 2:
        return None
    shape = (*x.shape[:k], x.shape[k] + low + high, *x.shape[k + 1 :])
    lows, highs = ([m if j == k else 0 for j in range(len(x.shape))] for m in (low, high))
    value = True if x.dtype == "i1" else 7
    return Drawn(x.dtype, shape, lambda b, v, n: b.pad(v[i], b.constant(value, x.dtype), lows, highs))


def join(d, i, x):
    k = d.dim(x)
    dims = (*x.shape[:k], *x.shape[k + 1 :])
    j = d.index(
        lambda y: y.dtype == x.dtype and len(y.shape) == len(x.shape) and (*y.shape[:k], *y.shape[k + 1 :]) == dims
    )
    shape = (*x.shape[:k], x.shape[k] + d.values[j].shape[k], *x.shape[k + 1 :])
    return Drawn(x.dtype, shape, lambda b, v, n: b.concatenate([v[i], v[j]], k))


def reverse(d, i, x):
    k = d.dim(x)
    return Drawn(x.dtype, x.shape, lambda b, v, n: b.reverse(v[i], (k,)))


def reduce(d, i, x):
    k = d.dim(x)
    kind = d.pick(("and", "or") if x.dtype == "i1" else ("add", "max", "min"))
    return Drawn(x.dtype, (*x.shape[:k], *x.shape[k + 1 :]), lambda b, v, n: b.reduce(kind, v[i], (k,)))


def scan(d, i, x):
    k, kind = d.dim(x), d.pick(("add", "max"))
    return Drawn(x.dtype, x.shape, lambda b, v, n: b.cumulative(kind, v[i], k)) if _numeric(x) else None


def extreme(d, i, x):
    k, kind, which = d.dim(x), d.pick(("max", "min")), d.pick((0, 1))
    shape = (*x.shape[:k], *x.shape[k + 1 :])
    dtype = x.dtype if which == 0 else "i64"
    return Drawn(dtype, shape, lambda b, v, n: b.argreduce(kind, v[i], k)[which]) if _numeric(x) else None


def sort(d, i, x):
    k, down = d.dim(x), d.pick((True, False))
    return Drawn(x.dtype, x.shape, lambda b, v, n: b.sort([v[i]], k, down)[0])


def product(d, i, x):
    if not _numeric(x):
        return None
    k = d.dim(x)
    j = d.index(lambda y: y.dtype == x.dtype and x.shape[k] in y.shape and len(y.shape) < 3)
    if j is None:
        return None
    m = d.values[j].shape.index(x.shape[k])
    shape = (*x.shape[:k], *x.shape[k + 1 :], *d.values[j].shape[:m], *d.values[j].shape[m + 1 :])
    return Drawn(x.dtype, shape, lambda b, v, n: b.dot_general(v[i], v[j], (), (), (k,), (m,)))


def rows(d, i, x):
    j = d.index(lambda y: y.dtype == "i64" and len(y.shape) == 1)
    if j is None or x.dtype == "i1":
        return None

    def build(b, v, n):
        return b.gather(
            v[i], v[j], offset_dims=range(1, len(x.shape)), collapsed_slice_dims=(0,), start_index_map=(0,),
            index_vector_dim=1, slice_sizes=(1, *_at(x.shape[1:], n)),
        )  # fmt: skip

    return Drawn(x.dtype, (*d.values[j].shape, *x.shape[1:]), build)


def window(d, i, x):
    k, start = d.dim(x), d.pick((-1, 0, 1, 4))
    size = d.pick((form(1), x.shape[k] - 1))
    shape = (*x.shape[:k], size, *x.shape[k + 1 :])

    def build(b, v, n):
        starts = [b.constant(start if j == k else 0, "i32") for j in range(len(x.shape))]
        return b.dynamic_slice(v[i], starts, _at(shape, n))

    return Drawn(x.dtype, shape, build)


def loop(d, i, x):
    k = d.pick((0, 1, 2))
    if not _numeric(x):
        return None

    def body(b, step, carried, kept):
        return [b.max(b.neg(carried), kept), kept]

    return Drawn(
        x.dtype, x.shape, lambda b, v, n: b.repeat(k, [b.constant(0, x.dtype, _at(x.shape, n)), v[i]], body)[0]
    )


STEPS = (
    unary, binary, number, choose, positions, transpose, merge, split, repeat, cut, pad, join, reverse, reduce, scan,
    extreme, sort, product, rows, window, loop,
)  # fmt: skip


@st.composite
def recipes(draw) -> Recipe:
    """Programs of 1 to 8 steps over `ARGUMENTS`."""
    values = [Drawn(dtype, tuple(shape)) for dtype, shape in map(argument_forms, ARGUMENTS)]
    recipe = Recipe()
    drawing = _Drawing(draw, values)
    for _ in range(draw(st.integers(1, 8))):
        step = drawing.pick(STEPS)
        chosen = drawing.index(lambda x: len(x.shape) > 0)
        assert chosen is not None
        value = step(drawing, chosen, values[chosen])
        most = 1 if value is None else int(np.prod(_at(value.shape, MOST), dtype=int))
        least = 1 if value is None else min(_at(value.shape, LEAST), default=1)
        if value is not None and most <= 300 and least > 0 and len(value.shape) <= 4:
            values.append(value)
            recipe.steps.append(value)
            recipe.names.append(f"{step.__name__}({chosen})")
    return recipe
