"""Dims that are said to vary."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import lazytpu
from lazytpu.frontend.recording.tensors import value_of
from lazytpu.runtime import client
from lazytpu.runtime.padded import PaddedBuffer
from tests.padding import buffer_of


def sizes(x: torch.Tensor) -> tuple[int, ...]:
    """Those of the array on the device."""
    return client.to_host(buffer_of(x).kept).shape


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_batch_that_is_marked_comes_padded(dtype: torch.dtype | None):
    x = torch.randn(4, 13)
    lazytpu.mark_dynamic(x, -1, min=2, max=512)
    with lazytpu.options(buckets="auto"):
        y = x.to("tpu", dtype)
    assert sizes(y) == (4, 14)
    assert buffer_of(y).ranges == {1: (2, 512)}
    assert_close(y.cpu(), x.to(dtype or x.dtype))


def test_torchs_own_mark_is_honoured():
    x = torch.randn(13, 4).t()
    torch._dynamo.mark_dynamic(x, 1)  # pyright: ignore[reportAttributeAccessIssue]
    with lazytpu.options(buckets="auto"):
        y = x.to("tpu")
        z = torch.empty(4, 13, device="tpu").copy_(x)
    assert sizes(y) == (14, 4) and buffer_of(y).ranges == {0: (0, None)}
    assert sizes(z) == (4, 14)
    assert_close(y.cpu(), x)
    assert_close(z.cpu(), x)


def test_a_tensor_on_the_device_is_padded_at_once():
    x = torch.arange(26.0).reshape(2, 13)
    with lazytpu.options(buckets="off"):
        y = x.to("tpu") + 1
        lazytpu.mark_step()
    with lazytpu.options(buckets="auto"):
        lazytpu.mark_dynamic(y, 1)
        lazytpu.mark_dynamic(y, 0)
    assert sizes(y) == (2, 14) and set(buffer_of(y).ranges) == {0, 1}
    assert_close(y.cpu(), x + 1)


def test_a_size_that_is_a_bound_shares_memory_that_nothing_takes():
    y = torch.ones(2, 8).to("tpu") + 1
    z = y * 3
    with lazytpu.options(buckets="auto"):
        lazytpu.mark_dynamic(y, 1)
    y.add_(z)
    lazytpu.mark_step()
    assert y.tolist() == [[8.0] * 8] * 2 and z.tolist() == [[6.0] * 8] * 2


def test_without_buckets_a_mark_pads_nothing():
    x = torch.ones(4, 13)
    lazytpu.mark_dynamic(x, 1)
    with lazytpu.options(buckets="off"):
        y = x.to("tpu")
        lazytpu.mark_dynamic(y, 0)
    assert not isinstance(value_of(y).buffer, PaddedBuffer)


def test_wrong_marks_are_refused():
    x = torch.ones(4, 13)
    with pytest.raises(IndexError, match=r"dim 2 of a tensor of shape \[4, 13\]"):
        lazytpu.mark_dynamic(x, 2)
    with pytest.raises(ValueError, match="min=None and max=12 for a dim of size 13"):
        lazytpu.mark_dynamic(x, 1, max=12)
    with pytest.raises(TypeError, match="takes a tensor; got a list"):
        lazytpu.mark_dynamic([1], 0)  # pyright: ignore[reportArgumentType]
