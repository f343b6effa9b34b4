"""Tiling waste."""

from __future__ import annotations

from lazytpu.inspection.tpu.padding import padded
from tests.inspection.tpu.recorded import hlo


def test_padding_is_listed_worst_first():
    paddings = padded(hlo("step"))
    assert {str(padding.array) for padding in paddings} == {"f32[640,100]"}  # 100 sublanes of 104: 4 %
    assert paddings[0].wasted == 640 * 4 * 4 and round(paddings[0].share, 3) == 0.038
    assert [padding.wasted for padding in paddings] == sorted((padding.wasted for padding in paddings), reverse=True)
    assert [padding.argument for padding in paddings if padding.op == "Arg_2.1"] == [None]


def test_whole_tiles_and_scalars_waste_nothing():
    assert padded(hlo("collectives")) == []
