"""Dimensions that are marked as dynamic."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import lazytpu
from lazytpu.frontend.tensors import value_of
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.xla import client
from tests.padding import buffer_of


def sizes(x: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes of the array on the device."""
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


def test_torchs_own_mark_pads():
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


def test_torchs_own_mark_pads_a_tensor_on_the_device():
    mark = torch._dynamo.mark_dynamic  # pyright: ignore[reportAttributeAccessIssue]
    x = torch.arange(26.0).reshape(2, 13)
    y = x.to("tpu") + 1
    with lazytpu.options(buckets="auto"):
        mark(y, [0, 1], max=64)
        mark(y[:, 1:], 1)  # no memory of its own
        mark(torch.ones(3, 3), 0)
        mark(torch.empty(3, device="tpu"), 5)  # torch itself checks no dimension
    assert sizes(y) == (2, 14) and buffer_of(y).ranges == {0: (0, 64), 1: (0, 64)}
    assert_close(y.cpu(), x + 1)


def test_a_size_that_is_a_bound_shares_memory_that_nothing_takes():
    y = torch.ones(2, 8).to("tpu") + 1
    z = y * 3
    with lazytpu.options(buckets="auto"):
        lazytpu.mark_dynamic(y, 1)
    y.add_(z)
    lazytpu.mark_step()
    assert y.tolist() == [[8.0] * 8] * 2 and z.tolist() == [[6.0] * 8] * 2


class Model(nn.Module):
    """Causal attention whose caller slices its ids: sizes adjacent to the marked ones, merged dimensions, and
    slices."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.norm, self.qkv, self.head = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.table(ids) + self.places(torch.arange(length, device=ids.device))
        q, k, v = [t.view(batch, length, 2, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)]
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + y.transpose(1, 2).reshape(batch, length, 16))


def test_the_first_step_with_a_mark_has_a_program_for_many_sizes():
    torch.manual_seed(0)
    host, device = Model(), Model()
    device.load_state_dict(host.state_dict())
    device.to("tpu")
    lazytpu.sync()
    before = len(lazytpu.explain())
    with lazytpu.options(buckets="auto", background_compile=0.0):
        for length in (22, 23, 24):
            ids = torch.randint(0, 50, (4, length))
            losses: list[torch.Tensor] = []
            for model, tokens in ((host, ids), (device, ids.clone())):
                if model is device:
                    lazytpu.mark_dynamic(tokens, 1, max=24)
                    tokens = tokens.to("tpu")
                logits = model(tokens[:, :-1])
                loss = functional.cross_entropy(logits.reshape(-1, 50), tokens[:, 1:].reshape(-1))
                model.zero_grad()
                loss.backward()
                losses.append(loss.detach())
                lazytpu.mark_step()
            assert_close(losses[1].cpu(), losses[0])
            for expected, actual in zip(host.parameters(), device.parameters(), strict=True):
                assert expected.grad is not None and actual.grad is not None
                assert_close(actual.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)
    reasons = [str(reason) for reason in list(lazytpu.explain())[before:]]
    assert len(reasons) == 1 and "one program for sizes n 3..24, now 22" in reasons[0]


@pytest.mark.usefixtures("fresh_traces")
def test_the_range_of_a_mark_limits_the_bucket():
    with lazytpu.options(buckets=(19, 48), background_compile=0.0):
        for size in (21, 40):
            x = torch.arange(float(size))
            lazytpu.mark_dynamic(x, 0, min=20, max=40)
            y = x.to("tpu")
            assert sizes(y) == (40,)
            assert (y * 2).sum().item() == 2 * x.sum().item()
    assert "one program for sizes n 20..40, now 21" in str(lazytpu.explain()[-1])


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
