"""Templates with padding: of batches, of matrices, of rows that are searched or ordered, and of windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from lazytpu.ir.forms import Range
from lazytpu.ir.types import shape_of
from lazytpu.passes.padding.pad_sizes import pad_sizes
from lazytpu.passes.padding.walk import Refusal
from tests.passes.padding.sized import annotated, compiled, same_at_every_size

LEAST_2: Mapping[str, Range] = {"n": (2, 6)}
Build = Callable[..., Any]


Shape = Callable[[int], tuple[int, ...]]


def called(name: str, *results: tuple[str, Shape], take: int | None = None, **params: Any) -> Build:
    """A function that builds a template; `take` is the index of the unique result, if only one is."""

    def build(b: Any, *operands: Any, n: int) -> Any:
        shapes = [(dtype, shape(n)) for dtype, shape in results]
        values = b.template(name, list(operands), shapes, **params)
        return values if take is None else values[take]

    return build


def window(n: int, size: int, stride: int, low: int) -> tuple[int, dict[str, Any]]:
    """Return the number of window positions in ceil mode, and the parameters of the template."""
    places = -(-(n + 2 * low - size) // stride) + 1
    high = (places - 1) * stride + size - n - low
    return places, {"sizes": (size, 1), "strides": (stride, 1), "low": (low, 0), "high": (high, 0), "dilation": (1, 1)}


def pooled(b: Any, x: Any, n: int) -> Any:
    places, params = window(n, 3, 1, 1)
    return b.template("max_pool", [x], [("f32", (2, places, 3)), ("i64", (2, places, 3))], **params)


def pooled_columns(b: Any, x: Any, n: int) -> Any:
    places, params = window(n, 2, 1, 0)
    turned = {name: tuple(reversed(value)) for name, value in params.items()}
    return b.template("max_pool", [x], [("f32", (2, 3, places)), ("i64", (2, 3, places))], **turned)


def pooled_back(b: Any, x: Any, n: int) -> Any:
    places, params = window(n, 3, 1, 1)
    turned = {name: tuple(reversed(value)) for name, value in params.items()}
    values, at = b.template("max_pool", [x], [("f32", (2, 3, places)), ("i64", (2, 3, places))], **turned)
    return b.template("max_pool_backward", [values, x, at], [("f32", (2, 3, n))], **turned)[0]


def summed(b: Any, x: Any, n: int) -> Any:
    places, params = window(n, 3, 1, 1)
    return b.template("window_sum", [x], [("f32", (2, places, 3))], base_dilation=(1, 1), **params)[0]


def gradient_of_kernel(stride: int, groups: int) -> Build:
    """A function that builds the gradient of a kernel of size 3 with padding 1 and 4 input features."""

    def build(b: Any, x: Any, grad: Any, n: int) -> Any:
        size, places = shape_of(x)[2], shape_of(grad)[2]
        high = (places - 1) * stride + 3 - size - 1
        window = {"strides": (1,), "low": (1,), "high": (high,), "lhs_dilation": (1,), "rhs_dilation": (stride,)}
        results, options = [("f32", (4, 4 // groups, 3))], {"groups": groups, "precision": "highest"}
        return b.template("convolution_weight_gradient", [x, grad], results, **options, **window)[0]

    return build


def solved_merged(b: Any, a: Any, x: Any, n: int) -> Any:
    rows = b.reshape(x, (3 * n, 1))
    return b.template("triangular_solve", [a, rows], [("f32", (3 * n, 1))])[0]


def square(i: int, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return well-conditioned positive definite matrices in place of square arguments."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return array
    half = rng.standard_normal(array.shape)
    return half @ np.swapaxes(half, -1, -2) + 3 * np.eye(array.shape[-1])


def rising(i: int, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.sort(array, axis=-1) if i == 0 else array


def ends(i: int, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.array([0, 1, 2]) if i == 2 else array


def nn(n: int) -> tuple[int, ...]:
    return 2, n, n


BEARS: dict[str, tuple[Build, list[str], Any]] = {
    "cholesky": (called("cholesky", ("f32", nn), ("i32", lambda n: (2,))), ["f32[2,n,n]"], square),
    "cholesky of a batch": (
        called("cholesky", ("f32", lambda n: (n, 3, 3)), ("i32", lambda n: (n,))), ["f32[n,3,3]"], square
    ),
    "lu": (called("lu", ("f32", nn), ("i32", lambda n: (2, n)), ("i32", lambda n: (2, n))), ["f32[2,n,n]"], None),
    "pivots": (
        called("pivots_to_permutation", ("i32", lambda n: (7,)), size=7), ["i32[n]"],
        lambda i, a, r: a % 2 + np.arange(len(a)),
    ),
    "triangular": (called("triangular_solve", ("f32", lambda n: (2, n, 3))), ["f32[2,n,n]", "f32[2,n,3]"], square),
    "triangular, from the right": (
        called("triangular_solve", ("f32", lambda n: (2, 3, n)), left=False), ["f32[2,n,n]", "f32[2,3,n]"], square
    ),
    "triangular, of a batch": (
        called("triangular_solve", ("f32", lambda n: (n, 3, 2))), ["f32[n,3,3]", "f32[n,3,2]"], square
    ),
    "triangular, merged": (solved_merged, ["f32[3*n,3*n]", "f32[3,n]"], square),
    "eigenvalues": (called("eigh", ("f32", lambda n: (2, n)), ("f32", nn), take=0), ["f32[2,n,n]"], square),
    "upper triangle": (
        called("eigh", ("f32", lambda n: (2, n)), ("f32", nn), take=0, upper=True), ["f32[2,n,n]"], None
    ),
    "exponential": (called("matrix_exp", ("f32", nn)), ["f32[2,n,n]"], None),
    "qr": (called("qr", ("f32", nn), ("f32", nn)), ["f32[2,n,n]"], None),
    "qr of rows": (called("qr", ("f32", lambda n: (n, 2)), ("f32", lambda n: (2, 2))), ["f32[n,2]"], None),
    "qr of columns": (called("qr", ("f32", lambda n: (7, n)), ("f32", lambda n: (n, n))), ["f32[7,n]"], None),
    "whole qr": (called("qr", ("f32", lambda n: (n, n)), ("f32", lambda n: (n, 2)), full=True), ["f32[n,2]"], None),
    "reflections": (called("householder_product", ("f32", lambda n: (n, 2))), ["f32[n,2]", "f32[2]"], None),
    "geqrf": (called("geqrf", ("f32", lambda n: (n, 2)), ("f32", lambda n: (2,))), ["f32[n,2]"], None),
    "singular values": (called("svdvals", ("f32", lambda n: (2, n))), ["f32[2,n,n]"], None),
    "fft of a batch": (
        called("fft", ("c64", lambda n: (n, 4)), kind="fft", lengths=(4,)), ["c64[n,4]"], None
    ),
    "searched row": (
        called("searchsorted", ("i64", lambda n: (5,)), side="right", wide=True), ["f32[n]", "f32[5]"], rising
    ),
    "searched rows": (
        called("searchsorted", ("i32", lambda n: (3, n)), side="left", wide=False), ["i32[3,n]", "i32[3,n]"], rising
    ),
    "order": (called("lexicographic_order", ("i64", lambda n: (n,))), ["f32[n,2]"], lambda i, a, r: np.round(a)),
    "order of columns": (called("lexicographic_order", ("i64", lambda n: (5,))), ["i32[5,n]"], None),
    "largest": (called("top_k", ("f32", lambda n: (3, 2)), ("i32", lambda n: (3, 2)), k=2), ["f32[3,n]"], None),
    "logs of sums": (called("cumulative_logsumexp", ("f32", lambda n: (3, n)), dim=1), ["f32[3,n]"], None),
    "maxima": (pooled, ["f32[2,n,3]"], None),
    "maxima of columns": (pooled_columns, ["f32[2,3,n]"], None),
    "gradient of maxima": (pooled_back, ["f32[2,3,n]"], None),
    "gradient of a kernel": (gradient_of_kernel(1, 4), ["f32[2,4,n]", "f32[2,4,n]"], None),
    "gradient of a kernel of few groups": (gradient_of_kernel(1, 2), ["f32[2,4,n]", "f32[2,4,n]"], None),
    "gradient of a kernel with a stride": (gradient_of_kernel(2, 4), ["f32[2,4,2*n]", "f32[2,4,n]"], None),
    "gradient of a kernel, of a batch": (gradient_of_kernel(1, 4), ["f32[n,4,5]", "f32[n,4,5]"], None),
    "sums": (summed, ["f32[2,n,3]"], None),
    "rows of groups": (
        called("grouped_rows", ("f32", lambda n: (n, 5)), precision="highest"),
        ["f32[n,4]", "f32[3,4,5]", "i32[3]"], ends,
    ),
    "columns of matrices of groups": (
        called("grouped_rows", ("f32", lambda n: (4, n)), precision="highest"),
        ["f32[4,2]", "f32[3,2,n]", "i32[3]"], ends,
    ),
    "sums of groups": (
        called("grouped_sums", ("f32", lambda n: (3, n, 5)), precision="highest"),
        ["f32[n,n]", "f32[n,5]", "i32[3]"], ends,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEARS)
def test_padded_templates_equal_exact_ones(name: str) -> None:
    build, arguments, values = BEARS[name]
    same_at_every_size(build, arguments, LEAST_2, tolerance=3e-4, values=values, run=compiled)


REFUSED = {
    "svd": (
        called("svd", ("f32", nn), ("f32", lambda n: (2, n)), ("f32", nn)), ["f32[2,n,n]"], "'svd' reads all elements"
    ),
    "too few": (
        called("top_k", ("f32", lambda n: (4,)), ("i32", lambda n: (4,)), k=4), ["f32[n]"], "which may be fewer"
    ),
    "a size among the parameters": (
        lambda b, x, n: b.template("cumulative_logsumexp", [x], [("f32", (n, 9))], dim=n), ["f32[n,9]"],
        "chooses what the op does",
    ),
    "features": (gradient_of_kernel(1, 4), ["f32[2,4,9]", "f32[2,n,9]"], "the features or the window"),
    "sum": (
        called("grouped_rows", ("f32", lambda n: (9, 5)), precision="highest"), ["f32[9,n]", "f32[3,n,5]", "i32[3]"],
        "what their products sum over",
    ),
    "groups": (
        called("grouped_sums", ("f32", lambda n: (n, 2, 5)), precision="highest"), ["f32[9,2]", "f32[9,5]", "i32[n]"],
        "the number of groups",
    ),
    "not square": (
        called("lu", ("f32", lambda n: (n, 9)), ("i32", lambda n: (n,)), ("i32", lambda n: (n,))), ["f32[n,9]"],
        "not square",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_templates_are_refused(name: str) -> None:
    build, arguments, reason = REFUSED[name]
    with pytest.raises(Refusal, match=reason):
        pad_sizes(annotated(build, arguments, LEAST_2))
