"""The bounds of the buckets of sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import lazytpu
from lazytpu.engine.sizes.buckets import SPREADS, active, bound, bound_within, spreads


def test_off_disables_buckets():
    with lazytpu.options(buckets="off"):
        assert not active()
        assert [bound(n) for n in (0, 1, 5, 129)] == [0, 1, 5, 129]


def test_deterministic_algorithms_disable_buckets():
    torch.use_deterministic_algorithms(True)
    try:
        with lazytpu.options(buckets="auto"):
            assert not active()
    finally:
        torch.use_deterministic_algorithms(False)


def test_auto_has_four_bounds_for_each_power_of_two():
    with lazytpu.options(buckets="auto"):
        assert active()
        bounds = [bound(n) for n in range(1025)]
        assert sorted(set(bounds))[:20] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56]
        assert [b for b in sorted(set(bounds)) if b > 512] == [640, 768, 896, 1024]
        assert all(n <= b <= 1.25 * n for n, b in enumerate(bounds) if n)
        assert all(bound(b) == b for b in bounds)
        assert len({bound(n) for n in range(16, 513)}) <= 24


def test_coarser_bounds_are_a_subset_of_finer_bounds():
    with lazytpu.options(buckets="auto"):
        assert spreads(1) == spreads(2) == SPREADS
        assert spreads(3) == SPREADS[:-1]
        for spread, finer in pairwise(SPREADS):
            bounds = {bound(n, spread) for n in range(1, 5000)}
            assert all(bound(b, finer) == b == bound(b, spread) for b in bounds)
        assert sorted({bound(n, 8) for n in range(4000)}) == [0, 1, 64, 512, 4096]
        assert sorted({bound(n, 2) for n in range(65)}) == [0, 1, 2, 4, 8, 16, 32, 64]
    with lazytpu.options(buckets=(64, 256)):
        assert spreads(1) == spreads(3) == (1,)


def test_tpu_bounds_are_multiples_of_the_lanes_where_closer():
    with lazytpu.options(buckets="auto", target="v6e"):
        assert [bound(n) for n in (130, 600, 1025, 2100)] == [160, 640, 1152, 2176]


def test_bounds_can_be_set():
    with lazytpu.options(buckets=(256, 64)):
        assert [bound(n) for n in (0, 1, 2, 64, 65, 256, 257)] == [0, 1, 64, 64, 256, 256, 257]
    with lazytpu.options(buckets="64, 256"):
        assert lazytpu.options.buckets == (64, 256)


@pytest.mark.parametrize("value", ["some", "", "1,2", (0,), (), 1.5, None])
def test_invalid_bounds_are_refused(value: object):
    with pytest.raises(ValueError, match="off, auto, or sizes such as 64,128,256"):
        lazytpu.options(buckets=value)  # pyright: ignore[reportArgumentType]


def test_bound_is_clipped_to_a_range():
    with lazytpu.options(buckets="auto"):
        assert bound_within(9, 0, None) == 10
        assert bound_within(9, 16, None) == 16
        assert bound_within(17, 0, 18) == 18
        assert bound_within(17, 0, 12) == 17
        assert bound_within(1, 16, 32) == 1
