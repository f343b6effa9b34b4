"""Array types with layouts: their bytes in each memory."""

from __future__ import annotations

import pytest

from lazytpu.inspection.tpu.arrays import Array
from tests.inspection.tpu.recorded import parsed


def arrays(shape: str) -> tuple[Array, ...]:
    return parsed(f"HloModule m\n\nENTRY %e {{\n  ROOT %p = {shape} parameter(0)\n}}\n").entry.ops[-1].results


@pytest.mark.parametrize(
    ("text", "elements", "padded"),
    [
        ("f32[256,1000]{1,0:T(8,128)}", 256000, 256 * 1024),
        ("f32[256,1000]{0,1:T(8,128)}", 256000, 256 * 1000),  # the first dimension is minor
        ("bf16[3,20,100]{2,1,0:T(8,128)(2,1)}", 6000, 3 * 24 * 128),
        ("f32[640]{0:T(1024)}", 640, 1024),
        ("f32[100]{0:T(8,128)}", 100, 8 * 128),  # a tile of more dimensions than the array
        ("f32[]{:T(128)}", 1, 128),
        ("f32[5,7]", 35, 35),
        ("f32[0,7]{1,0:T(8,128)}", 0, 0),
        ("s32[9,300]{1,0:T(*,128)}", 2700, 9 * 384),
    ],
)
def test_tiles_are_filled(text: str, elements: int, padded: int):
    (array,) = arrays(text)
    assert (array.elements, array.padded_elements) == (elements, padded)


@pytest.mark.parametrize(
    ("text", "nbytes"), [("pred[10]", 10), ("s4[10]", 5), ("bf16[10]", 20), ("f64[10]", 80), ("f8e4m3fn[10]", 10)]
)
def test_bytes(text: str, nbytes: int):
    assert [array.bytes for array in arrays(text)] == [nbytes]


def test_arrays_on_the_chip_take_no_hbm():
    inside, outside = arrays("(f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)})")[:2]
    assert (inside.space, inside.hbm_bytes, outside.hbm_bytes) == (1, 0, 4096)


def test_a_tuple_consists_of_its_arrays():
    assert list(map(str, arrays("((bf16[2,3]{1,0}, token[]), pred[])"))) == ["bf16[2,3]", "pred[]"]
    assert arrays("token[]") == ()
    assert arrays("f32[2]") == (Array("f32", (2,), (0,)),)
