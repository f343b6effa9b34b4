"""Strides of results: hypothesis draws an op and the layouts of its inputs, and the CPU provides the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

A = torch.ops.aten

ONE: dict[str, Callable[[Tensor], Any]] = {
    "neg": lambda x: -x,
    "plus a number": lambda x: x + 1,
    "a number minus": lambda x: 1 - x,
    "comparison": lambda x: x > 0,
    "relu": F.relu,
    "gelu": F.gelu,
    "clamp": lambda x: x.clamp(-1, 1),
    "pow": lambda x: x**2,
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "double": lambda x: x.double(),
    "copied": lambda x: x.to(x.dtype, copy=True),
    "zeros_like": torch.zeros_like,
    "complex": lambda x: torch.complex(x, x).conj().imag,
    "angle": lambda x: torch.complex(x, x).angle(),
    "sum": lambda x: x.sum(1),
    "sum kept": lambda x: x.sum(0, keepdim=True),
    "max": lambda x: x.max(1),
    "var_mean": lambda x: torch.var_mean(x, 0, correction=0),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(1),
    "softmax": lambda x: x.softmax(1),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "pad": lambda x: F.pad(x, (1, 1)),
    "repeat": lambda x: x.repeat(2, *[1] * (x.dim() - 1)),
    "index": lambda x: x[torch.zeros(2, dtype=torch.long, device=x.device)],
    "index_select": lambda x: x.index_select(1, torch.zeros(2, dtype=torch.long, device=x.device)),
    "gather": lambda x: x.gather(1, torch.zeros_like(x, dtype=torch.long)),
    "masked": lambda x: torch.where(x > 0, x, 0.0),
    "split": lambda x: x.split(1, 1),
    "unfold": lambda x: x.unfold(0, 1, 1),
    "diagonal": lambda x: x.diagonal(0, 0, 1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "matmul": lambda x: x @ x.mT,
    "into nothing": lambda x: torch.exp(x, out=torch.empty(0, device=x.device)),
    "fft": lambda x: torch.fft.fftn(x),
}
TWO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": torch.add,
    "mixed": lambda x, y: x * y.long(),
    "copysign": torch.copysign,
    "atan2": torch.atan2,
    "less": torch.lt,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "complex": torch.complex,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y.abs() + 1),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "stack": lambda x, y: torch.stack([x, y], -1),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "tanh_backward": A.tanh_backward.default,
    "threshold_backward": lambda x, y: A.threshold_backward.default(x, y, 0.0),
    "into nothing": lambda x, y: torch.add(x, y, out=torch.empty(0, device=x.device)),
}
IMAGES: dict[str, Callable[[Tensor], Any]] = {
    "conv2d": lambda x: F.conv2d(x, torch.ones(2, x.shape[1], 2, 2, device=x.device)),
    "conv2d with channels_last weight": lambda x: F.conv2d(
        x, torch.ones(2, x.shape[1], 2, 2, device=x.device).to(memory_format=torch.channels_last)
    ),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(x.shape[1], 2, 2, 2, device=x.device)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "cat": lambda x: torch.cat([x, x], 1),
    "to channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "clone as channels_last": lambda x: x.clone(memory_format=torch.channels_last),
    "like, channels_last": lambda x: torch.ones_like(x, memory_format=torch.channels_last),
    "double, contiguous": lambda x: x.to(torch.float64, memory_format=torch.contiguous_format),
}


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """Draw (order of dimensions, elements skipped along the last dimension in memory, the expanded dimension or -1)."""
    order = tuple(draw(st.permutations(range(len(shape)))))
    return order, draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([-1, -1, -1, *range(len(shape))]))


def laid_out(shape: tuple[int, ...], layout: tuple[tuple[int, ...], int, int], device: str) -> Tensor:
    order, step, expanded = layout
    sizes = [1 if d == expanded else shape[d] for d in order]
    sizes[-1] *= step
    memory = torch.arange(1.0, 1 + torch.Size(sizes).numel()).sin().reshape(sizes).to(device)[..., ::step]
    return memory.permute([order.index(d) for d in range(len(shape))]).expand(shape)


SHAPES = [(2, 3), (3, 1), (2, 3, 4), (2, 1, 3), (1, 2, 2), (2, 0, 3)]


def outcome(call: Callable[[], Any]) -> Any:
    """Return the type of the error, or (dtype, shape, stride, offset, values) of each result."""
    try:
        result = call()
    except (RuntimeError, IndexError) as error:
        return type(error)
    flat = [result] if isinstance(result, Tensor) else list(result)
    return [(t.dtype, tuple(t.shape), strides(t), t.storage_offset(), t.cpu()) for t in flat]


def strides(x: Tensor) -> tuple[int, ...]:
    """Return the significant strides: dimensions of size 1, and empty tensors, may have any stride."""
    return tuple(t if n > 1 and x.numel() else 0 for n, t in zip(x.shape, x.stride(), strict=True))


def same(got: Any, reference: Any) -> None:
    if not isinstance(reference, list):
        assert got == reference
        return
    for (*metadata, values), (*expected, right) in zip(got, reference, strict=True):
        assert metadata == expected
        torch.testing.assert_close(values, right, rtol=1e-4, atol=1e-5, equal_nan=True)


def bounded(examples: int) -> Any:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


@bounded(60)
@given(st.data())
def test_ops_of_one_tensor(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    op, layout = ONE[data.draw(st.sampled_from(sorted(ONE)))], data.draw(layouts(shape))
    same(outcome(lambda: op(laid_out(shape, layout, "tpu"))), outcome(lambda: op(laid_out(shape, layout, "cpu"))))


@bounded(60)
@given(st.data())
def test_ops_of_two_tensors(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    op, pair = TWO[data.draw(st.sampled_from(sorted(TWO)))], [data.draw(layouts(shape)) for _ in range(2)]
    got, reference = (outcome(lambda d=d: op(*(laid_out(shape, p, d) for p in pair))) for d in ("tpu", "cpu"))
    same(got, reference)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("name", IMAGES)
def test_ops_of_images(name: str, order: tuple[int, ...]) -> None:
    shape = (2, 3, 4, 4)
    got, reference = (outcome(lambda d=d: IMAGES[name](laid_out(shape, (order, 1, -1), d))) for d in ("tpu", "cpu"))
    same(got, reference)


POINTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one": lambda x, y: x.exp(),
    "two": lambda x, y: x + y,
    "with a number": lambda x, y: x + 1,
    "clone": lambda x, y: x.clone(),
}


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("shape", [(2, 1, 3, 3), (1, 3, 1), (2, 0, 3)], ids=str)
def test_strides_of_pointwise_results_are_exact(shape: tuple[int, ...], name: str) -> None:
    """Also insignificant strides are equal, because results of these results inherit them."""
    orders = [tuple(range(len(shape))), (*range(1, len(shape)), 0), tuple(reversed(range(len(shape))))]
    for first in orders:
        for second in orders:
            pairs = [[laid_out(shape, (order, 1, -1), d) for order in (first, second)] for d in ("tpu", "cpu")]
            got, reference = (POINTWISE[name](*pair) for pair in pairs)
            assert got.stride() == reference.stride()
