"""Elementwise ops, constants, iotas, random bits and regions, at every size, with poison in the padding."""

from __future__ import annotations

import pytest

from lazytpu.aten.pointwise.special import POLYNOMIALS, UNARY
from lazytpu.ir.dialect import OPS
from lazytpu.ir.pointwise import BinaryOp, UnaryOp
from lazytpu.passes.padding.rules import templates
from tests.passes.padding.sized import compiled, same_at_every_size

ONE = {"n": (1, 5)}
SOME = [{"n": 1}, {"n": 4}]
ELEMENTWISE = [name for name, op in OPS.items() if issubclass(op, UnaryOp | BinaryOp)]
PREFERRED = ("f32", "i32", "i1")


def test_elementwise_ops() -> None:
    """One program has all elementwise ops, and padding passes through each without a mask."""

    def build(b, *arguments, n):
        by_dtype = dict(zip(PREFERRED, [arguments[:2], arguments[2:4], arguments[4:]], strict=True))
        results = []
        for name in ELEMENTWISE:
            domain = getattr(OPS[name], "DOMAIN", {"f32"})
            dtype = next(d for d in PREFERRED if d in domain)
            x, y = by_dtype[dtype]
            if name in ("div", "rem"):
                y = b.binary("or", y, b.constant(1, "i32", (2, n))) if dtype == "i32" else y
            results.append(b.unary(name, x) if issubclass(OPS[name], UnaryOp) else b.binary(name, x, y))
        return results

    arguments = [f"{dtype}[2,n]" for dtype in PREFERRED for _ in "xy"]
    assert same_at_every_size(build, arguments, tolerance=1e-5, sizes=SOME, run=compiled).masks == 0


def test_other_elementwise_ops() -> None:
    def build(b, x, y, p, q, low, n):
        wide = b.bitcast_convert(x, "ui16")
        return [
            b.compare("LT", x, y), b.select(p, x, y), b.select(q, x, y), b.clamp(low, x, y), b.clamp(low, x, low),
            b.convert(x, "i32"), b.bitcast_convert(x, "i32"), wide, b.bitcast_convert(wide, "f32"),
        ]  # fmt: skip

    same_at_every_size(build, ["f32[2,n]", "f32[2,n]", "i1[2,n]", "i1[]", "f32[]"], sizes=SOME)


def test_constants_and_iotas() -> None:
    def build(b, x, n):
        position = b.iota("i32", (3, n), 1)
        total = b.reduce("add", position, (0, 1))
        ones = b.reduce("add", b.constant(1, "i32", (n, 3)), (0, 1))
        causal = b.compare("LE", b.iota("i32", (n, n), 1), b.iota("i32", (n, n), 0))
        seen = b.reduce("add", b.convert(causal, "i32"), (1,))
        return [position, total, ones, seen, b.add(x, b.convert(b.constant(2 * n + 1, "i32", (3, n)), "f32"))]

    same_at_every_size(build, ["f32[3,n]"])


def test_constant_takes_over_any_arrangement() -> None:
    def build(b, x, n):
        merged = b.reshape(x, (3 * n,))
        ones = b.reshape(b.constant(1, "f32", (n, 3)), (3 * n,))
        return [b.add(merged, ones), b.reduce("add", ones, (0,))]

    same_at_every_size(build, ["f32[3,n]"], ONE)


@pytest.mark.parametrize("dtype", ["ui32", "ui64"])
@pytest.mark.parametrize("shape", ["outer", "inner", "both"])
def test_random_bits_equal_the_exact_size(dtype: str, shape: str) -> None:
    def build(b, seed, offset, n):
        sizes = {"outer": (1, n, 3), "inner": (3, n), "both": (n, 2, n + 1)}[shape]
        return b.random_bits(seed, offset, sizes, dtype)

    same_at_every_size(build, ["ui64[]", "ui64[]"], sizes=SOME)


def test_random_bits_of_outer_sizes_are_unchanged() -> None:
    def build(b, seed, offset, n):
        return b.random_bits(seed, offset, (n, 2, n + 1))

    assert same_at_every_size(build, ["ui64[]", "ui64[]"], sizes=SOME).masks == 0


def test_branch_over_sized_values() -> None:
    def build(b, c, x, n):
        def then(b, x):
            return [b.mul(x, b.constant(n, "f32", (3, n))), b.reduce("add", x, (1,))]

        def orelse(b, x):
            return [b.constant(7, "f32", (3, n)), b.constant(0, "f32", (3,))]

        kept, total = b.if_(c, then, orelse, [x])
        return [kept, total, b.reduce("add", kept, (0, 1))]

    same_at_every_size(build, ["i1[]", "f32[3,n]"], tolerance=1e-5)


def test_loop_over_a_sized_sequence() -> None:
    """A recurrent layer: as many steps as the sequence has, each output in its row."""

    def build(b, x, h, w, n):
        def body(b, h, row):
            after = b.unary("tanh", b.add(row, b.dot_general(h, w, (), (), (0,), (0,))))
            return [after, after]

        (last,), (outputs,) = b.scan([h], [x], body, n)
        (first,), (backwards,) = b.scan([h], [x], body, n, reverse=True)
        return [last, outputs, first, backwards, b.reduce("max", outputs, (0,))]

    same_at_every_size(build, ["f32[n,2]", "f32[2]", "f32[2,2]"], ONE, tolerance=1e-5)


def test_loop_carries_padding() -> None:
    """The carried value starts as a constant, and is a merged dimension after the first iteration."""

    def build(b, x, n):
        merged = b.reshape(x, (3 * n,))

        def body(b, i, total, seen):
            return [b.add(total, merged), b.add(seen, b.reduce("add", total, (0,)))]

        return b.repeat(3, [b.constant(0, "f32", (3 * n,)), b.constant(0, "f32")], body)

    same_at_every_size(build, ["f32[3,n]"], ONE, tolerance=1e-5)


def test_loop_condition_reads_only_true_elements() -> None:
    def build(b, x, n):
        def cond(b, x):
            return b.compare("LT", b.reduce("max", x, (0,)), b.constant(50, "f32"))

        return b.while_([x], cond, lambda b, x: b.add(x, b.constant(7, "f32", (n,))))

    same_at_every_size(build, ["f32[n]"], ONE)


def test_check_reads_only_true_elements() -> None:
    def build(b, index, n):
        return b.reduce("and", b.compare("LT", index, b.constant(100, "i64", (n,))), (0,))

    assert same_at_every_size(build, ["i64[n]"]).masks == 1


def test_elementwise_template_ignores_degrees_in_the_padding() -> None:
    """The recurrence runs `degree` steps, so that the largest integer in the padding would not end."""

    def build(b, x, degree, n):
        y = b.template("hermite_polynomial", [x, degree], [("f32", (2, n))], physicist=True)[0]
        return b.reduce("add", y, [1])

    def degrees(i, array, rng):
        return rng.integers(0, 4, array.shape) if i else array

    same_at_every_size(build, ["f32[2,n]", "f32[2,n]"], tolerance=1e-5, values=degrees, run=compiled)


def test_elementwise_templates_match_the_special_functions() -> None:
    names = {name for name, _ in (*UNARY.values(), *POLYNOMIALS.values())}
    assert names | {"igamma", "igammac", "gcd", "trigamma", "zeta_at_extremes"} == templates.ELEMENTWISE
