"""Tiling waste."""

from __future__ import annotations

from lazytpu.inspection.tpu.padding import padded
from tests.inspection.tpu.recorded import hlo


def test_padding_is_listed_worst_first():
    found = padded(hlo("step"))
    assert {str(each.array) for each in found} == {"f32[640,100]"}  # 100 sublanes of 104: 4 %
    assert found[0].wasted == 640 * 4 * 4 and round(found[0].share, 3) == 0.038
    assert [each.wasted for each in found] == sorted((each.wasted for each in found), reverse=True)
    assert [each.argument for each in found if each.op == "Arg_2.1"] == [None]


def test_whole_tiles_and_scalars_waste_nothing():
    assert padded(hlo("collectives")) == []
