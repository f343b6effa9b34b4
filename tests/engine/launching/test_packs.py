"""Small packs are uploaded once and distinguished by their bits."""

from __future__ import annotations

import numpy as np

from lazytpu.engine.launching import packs
from lazytpu.engine.launching.packs import Packs
from lazytpu.runtime.xla import client


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_only_equal_bits_share_an_array() -> None:
    uploads = Packs()
    half = uploads.upload(f32(0.5))
    assert uploads.upload(f32(0.5)) is half
    distinct = [f32(0.0), f32(-0.0), f32(np.nan), np.array([0], np.int64), np.array([0], np.float64), f32(0.5, 0.5)]
    arrays = [uploads.upload(pack) for pack in distinct]
    assert len({id(a) for a in [half, *arrays]}) == 7
    for expected, array in zip(distinct, arrays, strict=True):
        uploaded = client.to_host(array)
        assert uploaded.dtype == expected.dtype
        assert uploaded.tobytes() == expected.tobytes()


def test_unrepeated_packs_do_not_accumulate() -> None:
    uploads = Packs()
    for i in range(packs.MOST + 10):
        uploads.upload(f32(i))
    assert len(uploads._arrays) <= packs.MOST
    large = np.arange(100, dtype=np.float32)
    assert uploads.upload(large) is not uploads.upload(large)
