"""The memory of arrays in tiles."""

from __future__ import annotations

import pytest

from lazytpu.passes.layout.tiling import best, tiled


@pytest.mark.parametrize(
    ("shape", "bits", "padded"),
    [
        ((8, 128), 32, 8 * 128 * 4),
        ((9, 129), 32, 16 * 256 * 4),
        ((9, 129), 16, 16 * 256 * 2),  # (16, 128)
        ((33, 128), 8, 64 * 128),  # (32, 128)
        ((33, 128), 1, 64 * 128),  # a boolean takes a byte
        ((3, 128), 32, 4 * 128 * 4),  # few sublanes: the next power of two
        ((1, 128), 16, 128 * 2),
        ((5, 3, 128), 32, 5 * 4 * 128 * 4),
        ((64, 64, 3, 3), 32, 64 * 64 * 4 * 128 * 4),
        ((100,), 32, 128 * 4),
        ((), 32, 4),
        ((0, 128), 32, 0),
    ],
)
def test_padding_of_the_row_major_order(shape: tuple[int, ...], bits: int, padded: int) -> None:
    assert tiled(shape, bits).padded_bytes == padded


def test_order_begins_with_the_fastest_dimension() -> None:
    weight = tiled((64, 32, 3, 3), 32, (0, 1, 3, 2))
    assert weight.bytes == 64 * 32 * 9 * 4
    assert (weight.tile, weight.padded_bytes) == ((8, 128), 2 * weight.bytes) and weight.share == 0.5
    with pytest.raises(ValueError, match="expected a permutation of 2 dimensions, fastest first, as the order; got"):
        tiled((2, 3), 32, (0, 0))


def test_best_order_is_row_major_if_possible() -> None:
    assert best((256, 128), 32).order == (1, 0)
    assert best((256, 3), 32).order == (0, 1)
    assert best((64, 256, 3, 3), 32).order == (1, 0, 3, 2)
    assert best((128, 256, 3, 3), 32).share == 0
    assert best((7,), 32).order == (0,) and best((), 32).order == ()
