"""Forms that are made of those that a program has already."""

from __future__ import annotations

from collections.abc import Callable

from lazytpu.ir.forms import parse
from lazytpu.passes.padding.compound import compound

SIZES = (63, 17, 40, 64, *range(45, 57))
STRIDED = "(n+2)/3"


def form_of(number: Callable[[int], int], *known: str) -> str:
    """The form of a number that has none of its own, beside these."""
    forms = list(map(parse, known))
    columns = [[each.at({"n": n}) for n in SIZES] for each in forms]
    *_, found = compound([*columns, list(map(number, SIZES))], [*([each] for each in forms), []])
    return str(found[0]) if found else ""


def test_a_quotient_of_a_quotient() -> None:
    assert form_of(lambda n: ((n + 2) // 3 + 1) // 2, "n", STRIDED) == "(n+5)/6"
    assert form_of(lambda n: ((n + 2) // 3 + 1) // 2, "n") == ""


def test_elements_of_an_image() -> None:
    assert form_of(lambda n: 2 * ((n + 2) // 3) ** 2, "n", STRIDED) == "2*(n+2)/3*(n+2)/3"


def test_what_a_stride_leaves_over() -> None:
    left = form_of(lambda n: (n + 2) // 3 - 2 * ((n + 5) // 6) + 7, "n", STRIDED, "(n+5)/6")
    assert left == "(n+2)/3-2*(n+5)/6+7"


def test_what_is_made_of_others_serves_others() -> None:
    columns = [[(n + 2) // 3 for n in SIZES], [(n + 11) // 12 for n in SIZES], [(n + 5) // 6 for n in SIZES]]
    assert [str(each[0]) for each in compound(columns, [[parse(STRIDED)], [], []])] == [STRIDED, "(n+11)/12", "(n+5)/6"]


def test_by_chance_few_numbers_are_none() -> None:
    known = parse("(n)/3")
    assert compound([[3, 4, 5, 6], [9, 16, 25, 36]], [[known], []]) == [[known], []]
