"""Forms of a program's numbers are believed where one size more than they need shows the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from xdsl.ir import SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.passes.padding.dims import Refused
from lazytpu.passes.padding.notes import Notes, notes_of, read
from tests.passes.padding.sized import module_at


def notes(arguments: str, at: Sequence[Mapping[str, int]]) -> Notes:
    def build(b: Builder, x: SSAValue, **sizes: int) -> SSAValue:
        return b.exp(x)

    return notes_of([read(module_at(build, [arguments], sizes)) for sizes in at], at)


def test_as_many_sizes_as_unknowns_are_too_few() -> None:
    """6 and 5 elements at 9 and 7 are (n+3)/2 and (n+8)/3, and others."""
    with pytest.raises(Refused, match="show no forms"):
        notes("f32[(n+3)/2]", [{"n": 9}, {"n": 7}])
    found = notes("f32[(n+3)/2]", [{"n": 9}, {"n": 7}, {"n": 12}])
    assert {number.at({"n": 20}) for number in found.numbers} == {11}


def test_a_symbol_that_never_varies_has_no_forms() -> None:
    with pytest.raises(Refused, match="show no forms"):
        notes("f32[n,m]", [{"n": n, "m": 4} for n in (9, 7, 12, 8)])
    assert "m" in map(str, notes("f32[n,m]", [{"n": n, "m": m} for n, m in ((9, 4), (7, 4), (12, 5), (8, 6))]).numbers)


def test_of_equal_forms_it_is_the_one_that_rules_make() -> None:
    """3*(n+1)/2 is 3*n-3*(n)/2, too; a merged dimension of 3 rows of (n+1)/2 is the first."""
    at = [{"n": n} for n in (9, 7, 12, 8, 31, 20, 15)]
    assert "3*(n+1)/2" in map(str, notes("f32[3*(n+1)/2]", at).numbers)


def test_what_a_window_leaves_over_of_places_of_windows() -> None:
    """Every second one of every second element: the rest of n/2 by 2 is made of both places."""
    at = [{"n": n} for n in (63, 17, 24, 32, *range(25, 31))]
    found = notes("f32[(n)/2,(n)/4,2*(n)/4-(n)/2+5]", at).numbers[2]
    assert [found.at({"n": n}) for n in range(99)] == [5 - n // 2 % 2 for n in range(99)]
