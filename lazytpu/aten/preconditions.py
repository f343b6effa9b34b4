"""Checks of values that the CPU kernel makes and torch's decomposition does not."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from lazytpu.aten.pointwise.operands import full
from lazytpu.ir.symbolic import spelled
from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _between_0_and_1(b: Builder, bound: dict[str, Any]) -> None:
    for name, words in (("self", "input"), ("target", "target")):
        x: SSAValue = bound[name]
        ok = b.and_(b.compare("GE", x, full(b, 0, x)), b.compare("LE", x, full(b, 1, x)))
        b.check(ok, f"all elements of {words} should be between 0 and 1", "RuntimeError")


def _inside_output(b: Builder, bound: dict[str, Any]) -> None:
    size, indices = list(bound["output_size"]), bound["indices"]
    volume = "x".join(map(spelled, size))
    below = b.compare("LT", indices, full(b, prod(size), indices))
    ok = b.and_(below, b.compare("GE", indices, full(b, 0, indices)))
    b.check(ok, f"Found an invalid max index (output volumes are of size {volume})", "RuntimeError")


PRECONDITIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "aten.binary_cross_entropy.default": _between_0_and_1,
    "aten.max_unpool2d.default": _inside_output,
    "aten.max_unpool3d.default": _inside_output,
}
"""Op -> function (builder, arguments by name) that registers the checks."""


def check_pivots(b: Builder, pivots: SSAValue, size: int, message: str) -> None:
    """Register the check that `pivots`, counted from 1, name rows of a matrix with `size` rows."""
    ok = b.and_(b.compare("GE", pivots, full(b, 1, pivots)), b.compare("LE", pivots, full(b, size, pivots)))
    if 0 not in shape_of(pivots):
        b.check(ok, message, "RuntimeError")
