"""Ops that move elements, at every size, with poison in the padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.passes.padding.sized import same_at_every_size

ONE = {"n": (1, 5)}
TWO = {"n": (2, 5)}

CASES: dict[str, tuple[Callable, list[str], dict]] = {
    "transpose": (lambda b, x, n: b.transpose(x, (1, 0)), ["f32[3,n]"], {}),
    "merge": (lambda b, x, n: b.reshape(x, (3 * n,)), ["f32[3,n]"], ONE),
    "merge and split": (lambda b, x, n: b.reshape(b.neg(b.reshape(x, (3 * n, 2))), (3, n, 2)), ["f32[3,n,2]"], ONE),
    "rows": (lambda b, x, n: b.reshape(x, (2 * n, 3)), ["f32[n,6]"], ONE),
    "rows of a prefix": (lambda b, x, n: b.reshape(b.reshape(x, (n * 6,)), (n, 2, 3)), ["f32[n,6]"], ONE),
    "new dimension": (lambda b, x, n: b.broadcast_in_dim(x, (n, 3, n), (1,)), ["f32[3]"], {}),
    "repeated": (lambda b, x, n: b.broadcast_in_dim(x, (3, n), (0, 1)), ["f32[3,1]"], {}),
    "outer sum": (
        lambda b, x, y, n: b.add(b.broadcast_in_dim(x, (n, n + 1), (0,)), b.broadcast_in_dim(y, (n, n + 1), (1,))),
        ["f32[n]", "f32[n+1]"],
        {},
    ),
    "reverse": (lambda b, x, n: b.reverse(x, (0, 1)), ["f32[3,n]"], {}),
    "reverse merged": (
        lambda b, x, n: b.reverse(b.reshape(x, (3 * n,)), (0,)),
        ["f32[3,n]"],
        ONE,
    ),
    "barrier": (lambda b, x, n: b.barrier(x), ["f32[n]"], {}),
    "concatenate behind": (lambda b, x, y, n: b.concatenate([y, x], 1), ["f32[2,n]", "f32[2,2]"], {}),
    "concatenate before": (lambda b, x, y, n: b.concatenate([x, y], 1), ["f32[2,n]", "f32[2,2]"], {}),
    "concatenate many": (
        lambda b, x, y, z, n: b.concatenate([y, x, z, y], 0),
        ["f32[n]", "f32[2]", "f32[n+1]"],
        {},
    ),
    "concatenate other": (lambda b, x, y, n: b.concatenate([x, y], 0), ["f32[2,n]", "f32[3,n]"], {}),
    "slice prefix": (lambda b, x, n: b.slice(x, (0, 0), (2, n - 1)), ["f32[2,n]"], ONE),
    "slice rest": (lambda b, x, n: b.slice(x, (0, 1), (2, n)), ["f32[2,n]"], ONE),
    "slice last": (lambda b, x, n: b.slice(x, (0, n - 1), (2, n)), ["f32[2,n]"], ONE),
    "slice first of table": (lambda b, x, n: b.slice(x, (0, 0), (n, 2)), ["f32[7,2]"], {}),
    "slice end of table": (lambda b, x, n: b.slice(x, (n, 0), (n + 2, 2)), ["f32[7,2]"], {}),
    "slice by steps": (lambda b, x, n: b.slice(x, (1,), (n,), (2,)), ["f32[n]"], ONE),
    "slice half": (lambda b, x, n: b.slice(x, (0,), (n // 2,)), ["f32[n]"], {}),
    "slice static": (lambda b, x, n: b.slice(x, (1,), (2,)), ["f32[n]"], TWO),
    "pad both": (lambda b, x, v, n: b.pad(x, v, (0, 2), (1, 3)), ["f32[2,n]", "f32[]"], {}),
    "pad crops": (lambda b, x, v, n: b.pad(x, v, (0, -1), (1, -1)), ["f32[2,n]", "f32[]"], TWO),
    "pad low, crop high": (lambda b, x, v, n: b.pad(x, v, (2,), (-1,)), ["f32[n]", "f32[]"], ONE),
    "pad crop low, high": (lambda b, x, v, n: b.pad(x, v, (-1,), (2,)), ["f32[n]", "f32[]"], ONE),
    "pad to a length": (lambda b, x, v, n: b.pad(x, v, (0,), (9 - n,)), ["f32[n]", "f32[]"], {}),
    "pad to the left": (lambda b, x, v, n: b.pad(x, v, (9 - n,), (0,)), ["f32[n]", "f32[]"], {}),
    "pad a row to n": (lambda b, x, v, n: b.pad(x, v, (0,), (n,)), ["f32[2]", "f32[]"], {}),
    "pad inside other": (lambda b, x, v, n: b.pad(x, v, (0, 0), (1, 0), (2, 0)), ["f32[3,n]", "f32[]"], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_moves(name: str) -> None:
    build, arguments, symbols = CASES[name]
    same_at_every_size(build, arguments, symbols or {"n": (0, 5)})


def test_equal_sizes_with_different_expressions() -> None:
    """Swap both halves of a sized dimension, as fftshift does."""

    def build(b, x, n):
        return b.concatenate([b.slice(x, [(n + 1) // 2], [n]), b.slice(x, [0], [(n + 1) // 2])], 0)

    same_at_every_size(build, ["f32[n]"], {"n": (2, 9)})


def test_slice_to_another_size_where_it_fits() -> None:
    """A cache of m tokens cropped to n of them, which is valid for n <= m."""

    def build(b, x, n, m):
        return b.mul(b.slice(x, [0], [n]), b.slice(x, [0], [n]))

    symbols = {"n": (2, 6), "m": (5, 9)}
    fitting = [{"n": n, "m": m} for n in range(2, 7) for m in range(5, 10) if n <= m]
    same_at_every_size(build, ["f32[m]"], symbols, sizes=fitting)


def test_slice_at_a_difference_of_sizes_where_it_fits() -> None:
    """Read the newest token of a table at an offset m - n of two sizes, which is valid for n <= m."""
    symbols = {"n": (2, 6), "m": (5, 9)}
    fitting = [{"n": n, "m": m} for n in range(2, 7) for m in range(5, 10) if n <= m]
    same_at_every_size(lambda b, x, n, m: b.slice(x, [m - n], [m - n + 1]), ["f32[8]"], symbols, sizes=fitting)
    same_at_every_size(lambda b, x, n, m: b.slice(x, [m - n], [m]), ["f32[9]"], symbols, sizes=fitting)
    same_at_every_size(lambda b, x, n, m: b.slice(x, [m - n], [m - n + 2]), ["f32[m]"], symbols, sizes=fitting)
