"""Dims: the arrangement of true elements in memory."""

from __future__ import annotations

import pytest

from lazytpu.ir.forms import symbol
from lazytpu.passes.padding.dims import Dim, Refused, merged, parse_dim, parse_dims, reshaped, sized

N = symbol("n")


def texts(dims) -> list[str]:
    return [str(dim) for dim in dims]


def test_static_factors_behind_a_sized_factor_merge_with_it() -> None:
    (rows,) = reshaped([sized(8, N), sized(4)], (32,))
    assert (str(rows), rows.text(), rows.prefix, rows.total) == ("4*n:32", "4*n", True, N * 4)
    assert texts(reshaped([rows], (8, 2, 2))) == ["n:8", "2", "2"]
    assert texts(reshaped([rows], (16, 2))) == ["2*n:16", "2"]


def test_factors_before_a_sized_factor_stay_separate() -> None:
    (merged_dim,) = reshaped([sized(4), sized(8, N)], (32,))
    assert (str(merged_dim), merged_dim.text(), merged_dim.prefix, merged_dim.total) == ("4|n:8", "4|n:8", False, N * 4)
    assert texts(reshaped([merged_dim], (2, 2, 8))) == ["2", "2", "n:8"]
    assert parse_dim("4|n:8", 32) == merged_dim


@pytest.mark.parametrize("shape", [(4, 8), (16, 2), (2, 16)])
def test_sized_factor_is_not_split(shape: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match=r"cuts a part of n:32"):
        reshaped([sized(32, N)], shape)


def test_free_dimension_adopts_the_arrangement_of_another() -> None:
    (two,) = reshaped([sized(4), sized(8, N)], (32,))
    free = sized(32, N * 4, free=True)
    assert merged(free, two) == merged(two, free) == two
    assert merged(free, free) == free
    with pytest.raises(Refused, match="other padding"):
        merged(two, Dim(free.factors))
    with pytest.raises(Refused, match="different sizes"):
        merged(sized(32, free=True), two)


def test_annotations_of_arguments_are_parsed() -> None:
    assert texts(parse_dims("_ n+1 4|n:8", (3, 9, 32))) == ["3", "n+1:9", "4|n:8"]
    with pytest.raises(ValueError, match="are for 1 dimensions; expected 2"):
        parse_dims("n", (3, 9))
    with pytest.raises(ValueError, match="has 32 elements in memory; the type has 33"):
        parse_dims("4|n:8", (33,))
