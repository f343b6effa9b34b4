"""Merged dimensions whose true elements have to lie in a row, and reshapes that cut a part with padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import Range
from tests.passes.padding.sized import N, compiled, same_at_every_size

TWO: Mapping[str, Range] = {"n": (0, 4), "m": (3, 6)}
LEAST_1: Mapping[str, Range] = {"n": (1, 5)}


def flat(b: Builder, x: Any, n: int) -> Any:
    return b.reshape(x, (3 * n,))


BUILDS: dict[str, tuple[Callable[..., Any], list[str], Mapping[str, Range]]] = {
    "to other rows": (lambda b, x, n: b.reshape(x, (n, 7)), ["f32[7,n]"], N),
    "to other rows of rows": (lambda b, x, n: b.reshape(x, (2, n, 7, 3)), ["f32[2,7,n,3]"], N),
    "from flat": (lambda b, x, n: b.reshape(b.add(flat(b, x, n), flat(b, x, n)), (n, 3)), ["f32[3,n]"], N),
    "two sizes change places": (lambda b, x, n, m: b.reshape(x, (m, n)), ["f32[n,m]"], TWO),
    "two sizes between others": (lambda b, x, n, m: b.reshape(x, (2, m, n, 3)), ["f32[2,n,m,3]"], TWO),
    "counted": (lambda b, x, n: b.add(flat(b, x, n), b.iota("f32", (3 * n,), 0)), ["f32[3,n]"], N),
    "added to a row": (lambda b, x, y, n: b.add(flat(b, x, n), y), ["f32[3,n]", "f32[3*n]"], N),
    "chosen by": (
        lambda b, x, y, n: b.select(b.compare("LT", y, flat(b, x, n)), flat(b, x, n), y), ["f32[3,n]", "f32[3*n]"], N
    ),
    "rest": (lambda b, x, n: b.slice(flat(b, x, n), (1,), (3 * n,)), ["f32[3,n]"], LEAST_1),
    "every other": (lambda b, x, n: b.slice(flat(b, x, n), (0,), (3 * n,), (2,)), ["f32[3,n]"], N),
    "windows": (
        lambda b, x, n: b.reduce_window("add", flat(b, x, n), (2,), (1,), (0,), (0,), (1,), (1,)), ["f32[3,n]"], LEAST_1
    ),
    "greatest": (lambda b, x, n: b.argreduce("max", flat(b, x, n), 0), ["f32[3,n]"], LEAST_1),
    "joined": (lambda b, x, n: b.concatenate([flat(b, x, n)] * 2, 0), ["f32[3,n]"], N),
    "padded": (lambda b, x, n: b.pad(flat(b, x, n), b.constant(7, "f32"), (2,), (1,)), ["f32[3,n]"], N),
    "product": (
        lambda b, x, y, n: b.dot_general(flat(b, x, n), y, (), (), (0,), (0,)), ["f32[3,n]", "f32[3*n,2]"], N
    ),
    "nothing at all": (lambda b, x, n: b.reshape(x, (n, 0, 3)), ["f32[3,n,0]"], N),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDS)
def test_true_elements_keep_their_order(name: str) -> None:
    build, arguments, symbols = BUILDS[name]
    same_at_every_size(build, arguments, symbols, tolerance=1e-6 if name == "product" else 0.0, run=compiled)


def test_value_is_moved_once() -> None:
    def build(b: Builder, x: Any, y: Any, n: int) -> Any:
        row = flat(b, x, n)
        return b.add(b.mul(row, y), b.max(row, y))

    from lazytpu.passes.padding.pad_sizes import pad_sizes
    from tests.passes.padding.sized import annotated

    module = annotated(build, ["f32[3,n]", "f32[3*n]"])
    pad_sizes(module)
    assert sum(op.name == "lazytpu.gather" for op in module.walk()) == 1
