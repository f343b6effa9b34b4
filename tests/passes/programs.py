"""Random small programs of the dialect, drawn by hypothesis, to test that passes preserve values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.text import print_module
from lazytpu.ir.types import dtype_of, is_complex, is_float, is_unsigned, numpy_dtype, shape_of, tensor_type

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, float("inf"), float("-inf"), float("nan"))
ARGUMENTS = (
    ("f32", (2, 3)),
    ("f32", (3,)),
    ("f32", (2, 1, 3)),
    ("bf16", (2, 3)),
    ("i32", (2, 3)),
    ("i32", (3, 4)),
    ("i32", (2, 2, 2, 3)),
    ("i64", (2, 3)),
    ("ui8", (1, 3)),
    ("i1", (2, 3)),
    ("f64", ()),
    ("c64", (2, 3)),
)


HEADS = (2, 2, 2, 3)


def integer_range(dtype: str) -> tuple[int, int]:
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


class Program:
    """A module under construction; `values` are available to the next op."""

    def __init__(self, draw: Callable[..., object]):
        self.draw = draw
        self.block = Block(arg_types=[tensor_type(*argument) for argument in ARGUMENTS])
        self.b = Builder(self.block)
        self.values: list[SSAValue] = list(self.block.args)

    def pick(self, options):
        return self.draw(st.sampled_from(list(options)))

    def value(self, suits: Callable[[SSAValue], bool] = lambda value: True) -> SSAValue:
        return self.pick([value for value in self.values if suits(value)])

    def number(self, dtype: str) -> bool | int | float | complex:
        if dtype == "i1":
            return self.pick((False, True))
        if is_complex(dtype):
            return complex(self.pick((0.0, -0.0, 1.0)), self.pick((0.0, 2.0)))
        if is_float(dtype):
            return self.pick(FLOATS)
        least, most = integer_range(dtype)
        return self.pick((0, 1, 7, least, most) if is_unsigned(dtype) else (0, 1, -1, 7, least, most))

    def like(self, x: SSAValue) -> SSAValue:
        """Return a value of the type of x: an existing one, or a constant."""
        if self.pick((True, False)):
            return self.b.constant(self.number(dtype_of(x)), dtype_of(x), shape_of(x))
        return self.value(lambda value: value.type == x.type)

    def inside(self, x: SSAValue, counted: bool = False) -> Callable[..., list[SSAValue]]:
        """Return a function for a region that yields two values of the type of x."""

        def fill(b: Builder, *arguments: SSAValue) -> list[SSAValue]:
            inner, outer, values = list(arguments[counted:]), self.b, self.values
            self.b, self.values = b, [*values, *inner, *inner]
            for _ in range(self.pick((0, 1, 2))):
                kept = [v for v in self.values if v.type == x.type]
                step = self.pick(SIMPLE)
                value = step(self)
                self.values.append(value)
                inner += [value] * (value.type == x.type) + [self.pick(kept)]
            self.b, self.values = outer, values
            candidates = [v for v in inner if v.type == x.type]
            return [self.pick(candidates), self.pick(candidates)]

        return fill

    def finish(self) -> ModuleOp:
        results = self.values[len(ARGUMENTS) :][-4:] or self.values[:1]
        self.block.add_op(ReturnOp(*results))
        types = [a.type for a in self.block.args], [r.type for r in results]
        return ModuleOp([FuncOp("main", types, Region(self.block))])


def _unary(p: Program) -> SSAValue:
    x = p.value()
    dtype = dtype_of(x)
    if dtype == "i1":
        return p.b.not_(x)
    if is_complex(dtype):
        return p.b.unary(p.pick(("neg", "real", "imag")), x)
    if is_float(dtype):
        return p.b.unary(p.pick(("neg", "abs", "sign", "floor", "ceil", "round_nearest_even")), x)
    return p.b.unary(p.pick(("neg", "not") if is_unsigned(dtype) else ("neg", "not", "abs", "sign")), x)


def _binary(p: Program) -> SSAValue:
    x = p.value()
    dtype = dtype_of(x)
    if dtype == "i1":
        return p.b.binary(p.pick(("add", "mul", "and", "or", "xor", "max", "min")), x, p.like(x))
    if is_complex(dtype):
        return p.b.binary(p.pick(("add", "sub")), x, p.like(x))
    common = ("add", "sub", "mul", "max", "min")
    name = p.pick((*common, "div", "pow") if is_float(dtype) else (*common, "and", "or", "xor", "shift_left", "div"))
    if name in ("pow", "div", "shift_left"):
        # Integers are divided by nonzero numbers; powers and shifts have one exponent.
        return p.b.binary(name, x, p.b.constant(0 if name == "shift_left" else 1, dtype, shape_of(x)))
    y = p.like(x)
    return p.b.binary(name, *p.pick(((x, y), (y, x))))


def _choose(p: Program) -> SSAValue:
    x = p.value(lambda value: not is_complex(dtype_of(value)))
    y = p.like(x)
    compared = p.b.compare(p.pick(("EQ", "NE", "LT", "LE", "GT", "GE")), x, y)
    pred = p.b.not_(compared) if p.pick((True, False)) else compared
    return p.b.select(pred, *p.pick(((x, y), (y, x), (x, x)))) if p.pick((True, False)) else pred


def _clamp(p: Program) -> SSAValue:
    x = p.value(lambda value: not is_complex(dtype_of(value)))
    bounds = [p.like(x) if p.pick((True, False)) else p.b.constant(p.number(dtype_of(x)), dtype_of(x)) for _ in "ab"]
    return p.b.clamp(bounds[0], x, bounds[1])


CONVERSIONS = {
    "f32": ("bf16", "f64", "f32"),
    "bf16": ("f32", "f64"),
    "f64": ("f32",),
    "i32": ("f64", "i8", "ui8", "i64", "f32"),
    "i8": ("i32", "f32"),
    "i64": ("i32",),
    "ui8": ("i32", "bf16"),
    "i1": ("f32", "i32"),
    "c64": ("c128",),
    "c128": ("c64",),
}


def _convert(p: Program) -> SSAValue:
    x = p.value(lambda value: dtype_of(value) in CONVERSIONS)
    y = p.b.convert(x, p.pick(CONVERSIONS[dtype_of(x)]))
    back = CONVERSIONS.get(dtype_of(y), ())
    return p.b.convert(y, p.pick(back)) if back and p.pick((True, False)) else y


def _reshape(p: Program) -> SSAValue:
    x = p.value()
    shape = [size for size in shape_of(x) if size != 1 or p.pick((True, False))]
    shape.insert(p.draw(st.integers(0, len(shape))), 1)
    return p.b.reshape(x, p.pick((shape, [int(np.prod(shape))])))


def _transpose(p: Program) -> SSAValue:
    x = p.value(lambda value: len(shape_of(value)) > 1)
    return p.b.transpose(x, p.draw(st.permutations(range(len(shape_of(x))))))


def _broadcast(p: Program) -> SSAValue:
    x = p.value(lambda value: len(shape_of(value)) < 4)
    shape, dims = list(shape_of(x)), list(range(len(shape_of(x))))
    shape = [p.pick((1, 2)) if size == 1 else size for size in shape]
    place = p.draw(st.integers(0, len(shape)))
    shape.insert(place, p.pick((1, 2)))
    return p.b.broadcast_in_dim(x, shape, [d + (d >= place) for d in dims])


def _slice(p: Program) -> SSAValue:
    x = p.value(lambda value: 0 not in shape_of(value))
    spans = [sorted((p.draw(st.integers(0, n - 1)), p.draw(st.integers(1, n)))) for n in shape_of(x)]
    starts, limits = [a for a, _ in spans], [max(b, a + 1) for a, b in spans]
    return p.b.slice(x, starts, limits, [p.pick((1, 1, 2)) for _ in spans])


def _pad(p: Program) -> SSAValue:
    x = p.value(lambda value: shape_of(value) != ())
    value = p.b.constant(p.number(dtype_of(x)), dtype_of(x))
    return p.b.pad(x, value, [p.pick((0, 1)) for _ in shape_of(x)], [p.pick((0, 2)) for _ in shape_of(x)])


def _concatenate(p: Program) -> SSAValue:
    x = p.value(lambda value: shape_of(value) != ())
    return p.b.concatenate([x, p.like(x)], p.draw(st.integers(0, len(shape_of(x)) - 1)))


def _reverse(p: Program) -> SSAValue:
    x = p.value(lambda value: shape_of(value) != ())
    return p.b.reverse(x, sorted(p.draw(st.sets(st.integers(0, len(shape_of(x)) - 1)))))


def _reduce(p: Program) -> SSAValue:
    # Sums of integers only: floats may be summed in any order.
    x = p.value(lambda value: shape_of(value) != () and not is_complex(dtype_of(value)))
    dtype = dtype_of(x)
    kinds = ("and", "or") if dtype == "i1" else ("max", "min") if is_float(dtype) else ("add", "max", "min", "mul")
    return p.b.reduce(p.pick(kinds), x, sorted(p.draw(st.sets(st.integers(0, len(shape_of(x)) - 1)))))


def _dot(p: Program) -> SSAValue:
    x = p.value(lambda value: dtype_of(value) == "i32" and 1 <= len(shape_of(value)) <= 3)
    dim = p.draw(st.integers(0, len(shape_of(x)) - 1))
    size = shape_of(x)[dim]
    candidates = [v for v in p.values if dtype_of(v) == "i32" and 1 <= len(shape_of(v)) <= 3 and size in shape_of(v)]
    y = p.pick(candidates)
    if p.pick((True, False)) and shape_of(y) == shape_of(x) and len(shape_of(x)) == 2:
        return p.b.dot_general(x, y, (1 - dim,), (1 - dim,), (dim,), (dim,))
    return p.b.dot_general(x, y, (), (), (dim,), (shape_of(y).index(size),))


def _batched_dot(p: Program) -> SSAValue:
    """Heads split, scaled and merged with the batch, as torch does it."""
    sides: list[SSAValue] = []
    for _ in "xy":
        x = p.value(lambda value: dtype_of(value) == "i32" and shape_of(value) == HEADS)
        x = p.b.transpose(x, p.pick(((0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2), (2, 0, 1, 3))))
        if p.pick((True, False)):
            x = p.b.mul(x, p.b.constant(3, "i32", shape_of(x)))
        sizes = shape_of(x)
        sides.append(p.b.reshape(x, (sizes[0] * sizes[1], *sizes[2:])))
    x, y = sides
    pairs = [(i, j) for i in (1, 2) for j in (1, 2) if shape_of(x)[i] == shape_of(y)[j]]
    if shape_of(x)[0] != shape_of(y)[0] or not pairs:
        return p.b.concatenate([x, x], p.pick((0, 1, 2)))
    i, j = p.pick(pairs)
    product = p.b.dot_general(x, y, (0,), (0,), (i,), (j,))
    return p.b.transpose(product, p.pick(((0, 1, 2), (0, 2, 1))))


def _update(p: Program) -> SSAValue:
    x = p.value(lambda value: shape_of(value) != () and 0 not in shape_of(value))
    update = p.b.slice(p.like(x), [0] * len(shape_of(x)), [max(1, size - 1) for size in shape_of(x)])
    starts = [p.b.constant(p.pick((0, 1)), "i32") for _ in shape_of(x)]
    written = p.b.dynamic_update_slice(x, update, starts)
    p.values.append(written)
    return _slice(p)


def _iota(p: Program) -> SSAValue:
    """An iota, the start of sequence positions and causal masks."""
    shape = p.pick(((3,), (2, 3), (1, 3)))
    counted = p.b.iota(p.pick(("i32", "i64", "f32")), shape, len(shape) - 1)
    if dtype_of(counted) == "f32" or p.pick((True, False)):
        return counted
    limit = p.b.constant(p.pick((-1, 0, 1, 3)), dtype_of(counted), shape)
    return p.b.compare(p.pick(("LT", "GE", "EQ")), counted, limit)


def _fold(p: Program) -> SSAValue:
    x = p.value(lambda value: dtype_of(value) in ("i32", "i64", "f32") and 0 not in shape_of(value) != ())
    dim = p.draw(st.integers(0, len(shape_of(x)) - 1))
    if dtype_of(x) != "f32" and p.pick((True, False)):
        return p.b.cumulative(p.pick(("add", "max")), x, dim)
    values, indices = p.b.argreduce(p.pick(("max", "min")), x, dim)
    p.values.append(values)
    return indices


def _rows(p: Program) -> SSAValue:
    """Rows gathered from a table, at the indices of an iota or any others.

    There are no scatters: the interpreter of jaxlib 0.10.2 scatters into the memory of its operand, so that later reads
    of the operand see the result, even if nothing uses it.
    """
    x = p.value(lambda value: dtype_of(value) in ("f32", "i32") and shape_of(value) == (2, 3))
    n, width = shape_of(x)
    long = p.pick((1, n, n + 1))
    index = p.b.iota("i32", (long,), 0)
    if p.pick((True, False)):
        index = p.b.array(np.array(p.draw(st.permutations(range(-1, 3)))[:long], np.int32), "i32")
    batch = p.pick(((long,), (1, long), (2, long)))
    index = p.b.broadcast_in_dim(index, batch, (len(batch) - 1,))
    return p.b.gather(
        x, index, offset_dims=(len(batch),), collapsed_slice_dims=(0,), start_index_map=(0,),
        index_vector_dim=len(batch), slice_sizes=(1, width),
    )  # fmt: skip


def _sort(p: Program) -> SSAValue:
    x = p.value(lambda value: dtype_of(value) in ("i32", "i64", "f32") and shape_of(value) != ())
    dim = len(shape_of(x)) - 1
    values, order = p.b.sort([x, p.b.iota("i64", shape_of(x), dim)], dim, descending=p.pick((True, False)))
    p.values.append(values)
    return order


def _window(p: Program) -> SSAValue:
    x = p.value(lambda value: shape_of(value) != () and 0 not in shape_of(value))
    start = [p.b.constant(p.pick((-1, 0, 1, 2)), "i64") for _ in shape_of(x)]
    return p.b.dynamic_slice(x, start, [max(1, size - 1) for size in shape_of(x)])


def _branch(p: Program) -> SSAValue:
    """A branch whose sides are single steps on values from outside."""
    x = p.value()
    condition = p.b.reshape(
        p.b.slice(p.value(lambda v: dtype_of(v) == "i1" and shape_of(v) == (2, 3)), (0, 1), (1, 2)), ()
    )
    if p.pick((True, False, False)):
        condition = p.b.constant(p.pick((True, False)), "i1")
    sides = [p.inside(x) for _ in "te"]
    results = p.b.if_(condition, *sides, [x, p.like(x)])
    p.values.append(results[1])
    return results[0]


def _loop(p: Program) -> SSAValue:
    """A loop of few iterations, which carries two values and may keep or swap them."""
    x = p.value()
    results = p.b.repeat(p.pick((0, 1, 2, 3)), [x, p.like(x)], p.inside(x, counted=True))
    p.values.append(results[1])
    return results[0]


STEPS = (
    _unary,
    _binary,
    _binary,
    _choose,
    _clamp,
    _convert,
    _reshape,
    _transpose,
    _broadcast,
    _slice,
    _pad,
    _concatenate,
    _reverse,
    _reduce,
    _dot,
    _batched_dot,
    _update,
    _iota,
    _fold,
    _rows,
    _sort,
    _window,
    _branch,
    _loop,
)
SIMPLE = (_unary, _binary, _choose, _clamp, _convert, _reshape, _slice, _branch, _loop)
"Steps inside regions."


@st.composite
def programs(draw) -> str:
    """Modules of 1 to 12 steps over the arguments `ARGUMENTS`, as text, so that hypothesis prints the failing one."""
    p = Program(draw)
    for _ in range(draw(st.integers(1, 12))):
        value = p.pick(STEPS)(p)
        if np.prod(shape_of(value)) <= 200:
            p.values.append(value)
    return print_module(p.finish())


def inputs(seed: int) -> list[np.ndarray]:
    """Arrays for `ARGUMENTS`, with NaN, infinities and both zeros among the floats."""
    rng = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for dtype, shape in ARGUMENTS:
        if is_complex(dtype):
            array = rng.choice((0.0, -0.0, 1.0, 2.5), shape) + 1j * rng.choice((0.0, -1.0), shape)
        elif is_float(dtype):
            array = rng.choice(FLOATS, shape)
        else:
            array = rng.integers(0, 2 if dtype == "i1" else 100, shape) - (50 if dtype in ("i32", "i64") else 0)
            if dtype == "i64":  # some need more than 32 bits, and would wrap around to small ones
                array = array + rng.choice((0, 0, 1 << 32, -1 << 33), shape)
        arrays.append(np.asarray(array).astype(numpy_dtype(dtype)))
    return arrays
