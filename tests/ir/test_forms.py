"""Forms: their text, arithmetic and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytpu.ir.forms import Form, form, parse, symbol

SYMBOLS = {"n": (0, 7), "b": (1, 3)}


@pytest.mark.parametrize(
    ("text", "printed", "at_5"),
    [
        ("32", "32", 32),
        ("0*n", "0", 0),
        ("n+1", "n+1", 6),
        ("-n+3", "-n+3", -2),
        ("4*n-2", "4*n-2", 18),
        ("b*n", "b*n", 10),
        ("n*b", "b*n", 10),
        ("2*(n+1)", "2*n+2", 12),
        ("(n+1)/2", "(n+1)/2", 3),
        ("(4*n+1)/2", "2*n", 10),
        ("-(n+1)/2+n", "n-(n+1)/2", 2),
        ("((n+1)/2+1)/2", "(n+3)/4", 2),
        ("((n+1)/2+5)/3", "(n+5)/6+1", 2),
        ("(3*(n+1)/2+1)/2", "(n+1)/2+(n+3)/4", 5),
    ],
)
def test_text(text: str, printed: str, at_5: int) -> None:
    parsed = parse(text)
    assert (str(parsed), parsed.at({"n": 5, "b": 2})) == (printed, at_5)
    assert parse(printed) == parsed


@pytest.mark.parametrize("text", ["", "n+", "n n", "n/0", "n/b", "(n", "n)", "2n", "n^2", "*n"])
def test_malformed(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("n", 0, 7), ("3-n", -4, 3), ("b*n", 0, 21), ("n-n/2", 0, 4), ("n*n-4*n", -4, 21), ("n+b", 1, 10)],
)
def test_range(text: str, least: int, most: int) -> None:
    assert parse(text).range(SYMBOLS) == (least, most)


def test_number() -> None:
    assert (form(3).number, (symbol("n") - symbol("n")).number, symbol("n").number) == (3, 0, None)
    assert parse("b*(n+1)/2").symbols == {"b", "n"}


FORMS = st.recursive(
    st.one_of(st.integers(-4, 9).map(form), st.sampled_from(("n", "b")).map(symbol)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda x: x[0] + x[1]),
        st.tuples(inner, inner).map(lambda x: x[0] - x[1]),
        st.tuples(inner, inner).map(lambda x: x[0] * x[1]),
        st.tuples(inner, st.integers(1, 4)).map(lambda x: x[0] // x[1]),
    ),
    max_leaves=6,
)


@given(x=FORMS, y=FORMS, n=st.integers(0, 7), b=st.integers(1, 3), by=st.integers(1, 4))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_arithmetic(x: Form, y: Form, n: int, b: int, by: int) -> None:
    sizes = {"n": n, "b": b}
    assert (x + y).at(sizes) == x.at(sizes) + y.at(sizes)
    assert (x - y).at(sizes) == x.at(sizes) - y.at(sizes)
    assert (x * y).at(sizes) == x.at(sizes) * y.at(sizes)
    assert (x // by).at(sizes) == x.at(sizes) // by
    assert parse(str(x)).at(sizes) == x.at(sizes)
    least, most = x.range(SYMBOLS)
    assert least <= x.at(sizes) <= most


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("n-(n)/2", "(n+1)/2", True),
        ("(n)/3+(n+1)/3+(n+2)/3", "n", True),
        ("2*(n+1)/2-2*(n+1)/4-2*(n+3)/4+3", "3", True),
        ("(n*n)/2+(n*n+1)/2", "n*n", True),
        ("n-(n)/2", "(n)/2", False),
        ("(n)/2+(n+1)/3", "n", False),
        ("n*n", "n", False),
        ("b*n-b*(n)/2", "b*(n+1)/2", False),  # equality of several symbols is not decided
        ("b*n", "n*b", True),
    ],
)
def test_spellings(one: str, other: str, same: bool) -> None:
    assert parse(one).same(parse(other)) is same
