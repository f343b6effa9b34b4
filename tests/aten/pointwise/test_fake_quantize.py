"""Fake quantization against torch's CPU, called by name, by torch.ao's modules, and with gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch

A: Any = torch.ops.aten


def numbers(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(6, 5) * 2
    x[0] = torch.tensor([nan, inf, -inf, 0.25, -0.0])
    x[1] = torch.tensor([1e30, -1e30, 0.05, 0.15, 1.75])
    return x.to(dtype)


SCALE, ZERO = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3, 1.0, 2.5]), torch.arange(5, dtype=torch.int32)
LEARNED, LEARNED_ALL = torch.tensor([2.7]), torch.tensor([0.2, 1.5, 2.5, 30.0, -4.0])

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "tensor": (A.fake_quantize_per_tensor_affine_cachemask, (0.1, 3, 0, 20)),
    "enabled": (
        A._fake_quantize_per_tensor_affine_cachemask_tensor_qparams, (SCALE, ZERO, torch.tensor([1]), 0, 20)
    ),
    "disabled": (
        A._fake_quantize_per_tensor_affine_cachemask_tensor_qparams, (SCALE, ZERO, torch.tensor([0]), 0, 20)
    ),
    "channels": (A.fake_quantize_per_channel_affine_cachemask, (SCALES, ZEROS, 1, 0, 20)),
    "float zero points": (A.fake_quantize_per_channel_affine_cachemask, (SCALES, ZEROS + 0.3, 1, 0, 20)),
    "learned": (A._fake_quantize_learnable_per_tensor_affine, (SCALE, LEARNED, 0, 20, 0.5)),
    "learned channels": (A._fake_quantize_learnable_per_channel_affine, (SCALES, LEARNED_ALL, 1, 0, 20, 0.5)),
}  # fmt: skip


def same(ours: Any, expected: Any) -> None:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, expected)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-6, equal_nan=True)


def placed(arguments: tuple[Any, ...]) -> list[Any]:
    return [x.to("tpu") if isinstance(x, torch.Tensor) else x for x in arguments]


@pytest.mark.parametrize("name", CALLS)
def test_forward_by_name(name: str) -> None:
    function, arguments = CALLS[name]
    x = numbers()
    same(function(x.to("tpu"), *placed(arguments)), function(x, *arguments))


@pytest.mark.parametrize("zero", [-9.6, -8.5, -3.6, -3.5, -3.0, -2.5, -0.5, 0.5, 2.5, 3.6, 7.5])
def test_learned_zero_points_are_rounded_as_on_the_cpu(zero: float) -> None:
    """The CPU's forward pass by tensor rounds a half to an even number, its backward pass up; both by channel as the
    former. Numbers out of range show the zero point alone."""
    x, rest = torch.tensor([-1e3, 1e3, 0.2]), (torch.tensor([0.5]), torch.tensor([zero]))
    for name, axis in (("tensor", ()), ("channel", (0,))):
        data = x if name == "tensor" else x[None]
        arguments = (data, *rest, *axis, -8, 7, 1.0)
        forward = getattr(A, f"_fake_quantize_learnable_per_{name}_affine")
        same(forward(*placed(arguments)), forward(*arguments))
        backward = getattr(A, f"_fake_quantize_learnable_per_{name}_affine_backward")
        arguments = (torch.ones_like(data), *arguments)
        same(backward(*placed(arguments)), backward(*arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("zero", [torch.tensor([3.37]), torch.tensor([3.37]).half(), torch.tensor([3]).int()])
def test_numbers_near_halves_are_rounded_as_on_the_cpu(dtype: torch.dtype, zero: torch.Tensor) -> None:
    scale, steps = torch.tensor([0.3]), torch.arange(-2000, 2000, dtype=torch.float64) + 0.5
    halves = torch.cat([steps * scale.double(), (steps - zero.double()) * scale.double()])
    x = torch.cat([halves * (1 + e) for e in (0, 1e-9, -1e-9, 3e-8, -3e-8, 1e-7, -1e-7)]).to(dtype)[:, None]
    expected = A.fake_quantize_per_channel_affine_cachemask(x, scale, zero, 1, -1500, 1500)
    ours = A.fake_quantize_per_channel_affine_cachemask(*placed((x, scale, zero)), 1, -1500, 1500)
    for a, b in zip(ours, expected, strict=True):
        assert a.cpu().equal(b)


@pytest.mark.parametrize("zero", [-1, 21])
def test_zero_points_of_channels_must_be_in_range(zero: int) -> None:
    x, zeros = numbers().nan_to_num(), ZEROS.clone()
    zeros[2] = zero
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="`zero_point` must be between"):
            torch.fake_quantize_per_channel_affine(*[t.to(device) for t in (x, SCALES, zeros)], 1, 0, 20).cpu()


@pytest.mark.parametrize("learned", [False, True])
def test_gradients_of_learned_parameters(learned: bool) -> None:
    x, grad = torch.nan_to_num(numbers(), 0.0, 5.0, -5.0).clamp(-100, 100), torch.ones(6, 5) * 0.7
    if learned:
        function, rest = A._fake_quantize_learnable_per_channel_affine_backward, (SCALES, LEARNED_ALL, 1, 0, 20, 0.5)
    else:
        function, rest = A._fake_quantize_learnable_per_tensor_affine_backward, (SCALE, LEARNED, 0, 20, 0.5)
    same(function(grad.to("tpu"), x.to("tpu"), *placed(rest)), function(grad, x, *rest))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16])
def test_gradient_is_that_of_numbers_in_range(dtype: torch.dtype) -> None:
    results = []
    for device in ("cpu", "tpu"):
        x = numbers(dtype).to(device).requires_grad_()
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 20)
        y.backward(torch.full_like(y, 0.7))
        results.append((y.detach(), x.grad))
    same(results[1], results[0])


def test_bad_ranges_and_channels_are_refused_as_on_the_cpu() -> None:
    x = numbers()
    for call in (
        lambda d: torch.fake_quantize_per_tensor_affine(x.to(d), 0.1, 3, 20, 0),
        lambda d: torch.fake_quantize_per_tensor_affine(x.to(d), 0.1, 21, 0, 20),
        lambda d: torch.fake_quantize_per_tensor_affine(x.to(d), 0.1, -1, 0, 20),
        lambda d: A._fake_quantize_learnable_per_tensor_affine_backward(
            x.to(d), x.to(d), SCALE.to(d), LEARNED.to(d), 1, 20, 0.5
        ),
        lambda d: A._fake_quantize_learnable_per_channel_affine_backward(
            x.to(d), x.to(d), SCALES.to(d), LEARNED_ALL.to(d), 1, 1, 20, 0.5
        ),
        lambda d: torch.fake_quantize_per_channel_affine(x.to(d), SCALES.to(d), ZEROS.to(d), -1, 0, 20),
        lambda d: torch.fake_quantize_per_channel_affine(x.to(d), SCALES[:3].to(d), ZEROS[:3].to(d), 1, 0, 20),
        lambda d: torch.fake_quantize_per_channel_affine(x.to(d), SCALES.to(d), ZEROS[:3].to(d), 1, 0, 20),
    ):
        with pytest.raises(RuntimeError) as expected:
            call("cpu")
        with pytest.raises(RuntimeError, match=str(expected.value).split("\n")[0][:30].replace("`", ".")):
            call("tpu")


def test_aminmax_by_its_old_name() -> None:
    x = numbers()
    same(A._aminmax(x.to("tpu")), A._aminmax(x))
    same(A._aminmax.dim(x.to("tpu"), 1, True), A._aminmax.dim(x, 1, True))
