"""Slices and pads with sizes as strides: reads and writes of diagonals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lazytpu.ir.forms import Range
from tests.passes.padding.sized import N, compiled, same_at_every_size

LEAST_1: Mapping[str, Range] = {"n": (1, 5)}
PLACES: dict[str, tuple[Callable[..., Any], list[str], Mapping[str, Range]]] = {
    "diagonal": (
        lambda b, x, n: b.slice(b.reshape(x, (n * n,)), (0,), (n * n,), (n + 1,)), ["f32[n,n]"], LEAST_1
    ),
    "of rows": (lambda b, x, n: b.slice(x, (0, 1), (3, n * n), (1, n + 1)), ["f32[3,n*n]"], {"n": (2, 5)}),
    "to a diagonal": (
        lambda b, x, n: b.reshape(b.pad(x, b.constant(2, "f32"), (0,), (n,), (n,)), (n, n + 1)), ["f32[n]"], LEAST_1
    ),
    "columns apart": (lambda b, x, n: b.pad(x, b.constant(2, "f32"), (0, 1), (0, 2), (0, 2)), ["f32[2,n]"], LEAST_1),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_strided_elements_equal_the_exact_size(name: str) -> None:
    build, arguments, symbols = PLACES[name]
    same_at_every_size(build, arguments, symbols, run=compiled)


def test_pad_without_interior_elements() -> None:
    def build(b: Any, x: Any, n: int) -> Any:
        return b.reduce("add", b.pad(x, b.constant(2, "f32"), (1,), (2,), (0,)), (0,))

    same_at_every_size(build, ["f32[n]"], N, tolerance=1e-5)
