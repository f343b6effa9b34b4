"""Random shapes, also empty and 0-d: broadcasting, reductions, indexing, products and views.

Hypothesis draws them, the same shapes every time. A draw is several cases, which are compiled together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as shapes

from tests.conformance.agree import Case, agree

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, about variances of one number
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=12,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool])
FLOATS = st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16])
SIDE = st.sampled_from([1, 2, 3, 0, 4])


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return numbers of both signs, all different if the dtype has enough, and not 0, except bools."""
    n = math.prod(shape)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    numbers = (order - n // 2 + 0.5) * 2 if not dtype.is_floating_point else (order - n / 2 + 0.25) / max(1, n) * 4
    return (numbers > 0 if dtype is torch.bool else numbers).to(dtype).reshape(shape)


def laid_out(draw: Any, tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a view with the same shape and other strides: reversed twice, a slice of a larger tensor, or
    transposed."""
    kinds = ["plain", "cut", "transposed"] if tensor.dim() else ["plain"]
    return {
        "plain": lambda t: t,
        "cut": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
        "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    }[draw(st.sampled_from(kinds))]


SHAPE = st.lists(SIDE, max_size=4).map(tuple)

BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": lambda x, y: torch.sub(x, y, alpha=2),
    "mul": torch.mul,
    "true_divide": torch.div,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "le": torch.le,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "hypot": lambda x, y: torch.hypot(x.float(), y.float()),
    "logical_xor": torch.logical_xor,
    "in place": lambda x, y: torch.zeros_like(x, dtype=torch.float64).add_(y),
    "out": lambda x, y: torch.mul(x, y, out=torch.empty(0, dtype=torch.float64, device=x.device)),
    "expand": lambda x, y: torch.broadcast_tensors(x, y),
}


@st.composite
def binaries(draw: Any) -> Case:
    drawn = draw(shapes.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4))
    x, y = (values(tuple(s), draw(DTYPES), seed) for seed, s in enumerate(drawn.input_shapes))
    name, first, second = draw(st.sampled_from(sorted(BINARY))), laid_out(draw, x), laid_out(draw, y)
    return Case(name, lambda x, y: BINARY[name](first(x), second(y)), (x, y))


@given(st.lists(binaries(), min_size=6, max_size=6))
@FIXED
def test_broadcasting(cases: list[Case]):
    agree(*cases)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": lambda x, dim, keepdim: torch.mean(x.float(), dim, keepdim=keepdim),
    "amax": torch.amax,
    "amin": torch.amin,
    "any": torch.any,
    "all": torch.all,
    "count_nonzero": lambda x, dim, keepdim: torch.count_nonzero(x, dim),
    "logsumexp": lambda x, dim, keepdim: torch.logsumexp(x.float(), dim, keepdim=keepdim),
    "var": lambda x, dim, keepdim: torch.var(x.double(), dim, keepdim=keepdim),
    "norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x.float(), dim=dim, keepdim=keepdim),
    "argmax": lambda x, dim, keepdim: torch.argmax(x.float(), dim[0] if dim else None, keepdim=keepdim),
    "cumsum": lambda x, dim, keepdim: torch.cumsum(x, dim[0] if dim else 0),
    "sort": lambda x, dim, keepdim: torch.sort(x.float(), dim[0] if dim else 0, descending=keepdim),
    "median": lambda x, dim, keepdim: torch.median(x.float(), dim[0] if dim else 0, keepdim),
    "softmax": lambda x, dim, keepdim: torch.softmax(x.float(), dim[0] if dim else 0),
}


@st.composite
def reductions(draw: Any) -> Case:
    shape = draw(SHAPE)
    dims = draw(st.lists(st.integers(-len(shape), len(shape) - 1), max_size=len(shape), unique=True)) if shape else []
    name, keepdim = draw(st.sampled_from(sorted(REDUCTIONS))), draw(st.booleans())
    x = values(shape, draw(DTYPES), 0)
    layout = laid_out(draw, x)
    label = f"{name} over {dims}{' kept' if keepdim else ''} of"
    return Case(label, lambda x: REDUCTIONS[name](layout(x), tuple(dims), keepdim=keepdim), (x,))


@given(st.lists(reductions(), min_size=6, max_size=6))
@FIXED
def test_reductions(cases: list[Case]):
    agree(*cases)


@st.composite
def products(draw: Any) -> Case:
    n, k, m = (draw(SIDE) for _ in range(3))
    batch = draw(shapes.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, min_side=0, max_side=3)).input_shapes
    left = draw(st.sampled_from([(k,), (*batch[0], n, k)]))
    right = draw(st.sampled_from([(k,), (*batch[1], k, m)]))
    dtype = draw(FLOATS)
    x, y = values(left, dtype, 0), values(right, dtype, 1)
    first, second = laid_out(draw, x), laid_out(draw, y)
    return Case("matmul", lambda x, y: first(x) @ second(y), (x, y))


@given(st.lists(products(), min_size=6, max_size=6))
@FIXED
def test_products(cases: list[Case]):
    agree(*cases)


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an index: integers, slices, None, ..., and at most two adjacent arrays of indices."""
    index: list[Any] = []
    arrays = draw(shapes.array_shapes(max_dims=2, min_side=0, max_side=3))
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kinds = ["slice", "all", *(["int", "array"] if size else [])]
        kind = draw(st.sampled_from(kinds))
        if kind == "int":
            index.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            first, last = draw(st.integers(-size - 1, size + 1)), draw(st.integers(-size - 1, size + 1))
            index.append(slice(first, last, draw(st.integers(1, 2))))
        elif kind == "array":
            drawn = draw(st.lists(st.integers(-size, size - 1), min_size=math.prod(arrays), max_size=math.prod(arrays)))
            index.append(torch.tensor(drawn, dtype=torch.int64).reshape(arrays))
        else:
            index.append(slice(None))
        if draw(st.integers(0, 5)) == 0:
            index.append(None)
    if draw(st.booleans()):
        index.append(...)
    return tuple(index)


def at(index: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(i.to(device) if isinstance(i, torch.Tensor) else i for i in index)


def written(x: torch.Tensor, index: tuple[Any, ...]) -> torch.Tensor:
    """Write a number at the indices."""
    x[at(index, x.device)] = 7
    return x


@st.composite
def accesses(draw: Any) -> Case:
    shape = draw(SHAPE)
    index, x = draw(indices(shape)), values(shape, draw(DTYPES), 0)
    layout = laid_out(draw, x)
    if draw(st.booleans()):
        return Case(f"x{list(index)} = 7 of", lambda x: written(layout(x), index), (x,))
    return Case(f"x{list(index)} of", lambda x: layout(x)[at(index, x.device)], (x,))


@given(st.lists(accesses(), min_size=6, max_size=6))
@FIXED
def test_indexing(cases: list[Case]):
    agree(*cases)


@st.composite
def masks(draw: Any) -> Case:
    shape = draw(SHAPE.filter(len))
    x = values(shape, draw(DTYPES), 0)
    mask = values(shape[: draw(st.integers(1, len(shape)))], torch.bool, 1)
    wide = mask.shape + (1,) * (x.dim() - mask.dim())
    kind = draw(st.sampled_from(["read", "write", "nonzero"]))
    if kind == "read":
        return Case("x[mask]", lambda x, m: x[m], (x, mask))
    if kind == "write":
        return Case("x[mask] = 5", lambda x, m: x.masked_fill_(m.reshape(wide), 5), (x, mask))
    return Case("nonzero", lambda x, m: (torch.nonzero(m), x), (x, mask))


@given(st.lists(masks(), min_size=2, max_size=2))
@FIXED
def test_masks(cases: list[Case]):
    agree(*cases)


MOVES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "transpose": lambda x, n: x.transpose(n % x.dim(), -1) if x.dim() else x,
    "flatten": lambda x, n: x.reshape(-1),
    "unsqueeze": lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    "squeeze": lambda x, n: x.squeeze(),
    "narrow": lambda x, n: x.narrow(n % x.dim(), 0, (x.shape[n % x.dim()] + 1) // 2) if x.dim() else x,
    "step": lambda x, n: x[..., ::2] if x.dim() else x,
    "expand": lambda x, n: x.expand(2, *x.shape),
    "flip": lambda x, n: x.flip(n % x.dim()) if x.dim() else x,
    "roll": lambda x, n: x.roll(n, 0) if x.dim() else x,
    "diagonal": lambda x, n: x.diagonal(n % 2) if x.dim() > 1 else x,
    "select": lambda x, n: x.select(0, -1) if x.dim() and x.shape[0] else x,
    "split": lambda x, n: x.chunk(2, n % x.dim())[-1] if x.dim() else x,
    "pad": lambda x, n: torch.nn.functional.pad(x, (n, 1)) if x.dim() else x,
    "repeat": lambda x, n: x.repeat(2, *[1] * x.dim()),
    "unfold": lambda x, n: x.unfold(0, 2, 1) if x.dim() and x.shape[0] > 1 else x,
    "write": lambda x, n: x.add_(1) if x.is_contiguous() else x,
}


@st.composite
def chains(draw: Any) -> Case:
    """Return a chain of ops that move elements, some of them views; writes between them change the input."""
    steps = draw(st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 3)), min_size=1, max_size=5))
    x = values(draw(SHAPE), draw(st.sampled_from([torch.float32, torch.int64])), 0)

    def moved(x: torch.Tensor) -> torch.Tensor:
        for name, n in steps:
            x = MOVES[name](x, n)
        return x

    return Case(" ".join(f"{name} {n}" for name, n in steps), moved, (x,))


@given(st.lists(chains(), min_size=6, max_size=6))
@FIXED
def test_chains_of_views(cases: list[Case]):
    agree(*cases)
