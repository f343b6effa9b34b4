"""Layer, group and RMS normalization against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16]
ALL = [True, True, True]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [[5], [4, 5]], ids=str)
def test_layer_norm(dtype: torch.dtype, shape: list[int]) -> None:
    x, weight, bias = values(3, 4, 5, dtype=dtype), values(*shape, dtype=dtype), values(*shape, dtype=dtype) + 1
    check(A.native_layer_norm.default, x, shape, weight, bias, 1e-5)
    _, mean, rstd = A.native_layer_norm.default(x, shape, weight, bias, 1e-5)
    grad = values(3, 4, 5, dtype=dtype).flip(0)
    loose = 0.1 if dtype is torch.bfloat16 else None  # the CPU rounds intermediate sums of the parameters' gradients
    check(A.native_layer_norm_backward.default, grad, x, shape, mean, rstd, weight, bias, ALL, atol=loose)


def test_layer_norm_without_parameters() -> None:
    x = values(3, 4)
    check(A.native_layer_norm.default, x, [4], None, None, 1e-5)
    check(A.native_layer_norm.default, x, [4], values(4), None, 1e-5)
    _, mean, rstd = A.native_layer_norm.default(x, [4], None, None, 1e-5)
    check(A.native_layer_norm_backward.default, values(3, 4), x, [4], mean, rstd, None, None, [True, False, False])
    weight = values(4)
    check(A.native_layer_norm_backward.default, values(3, 4), x, [4], mean, rstd, weight, weight, [False, True, True])


def test_layer_norm_of_large_values() -> None:
    """The variance takes two passes, so nothing cancels."""
    check(A.native_layer_norm.default, values(3, 64) + 3000, [64], None, None, 1e-5, rtol=1e-2, atol=1e-3)


def test_layer_norm_of_mixed_dtypes() -> None:
    x, weight, bias = values(3, 4, dtype=torch.bfloat16), values(4), values(4) + 1
    check(A.native_layer_norm.default, x, [4], weight, bias, 1e-5)


def test_layer_norm_of_nothing() -> None:
    check(A.native_layer_norm.default, torch.ones(0, 4), [4], values(4), values(4), 1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(dtype: torch.dtype, groups: int) -> None:
    x, weight, bias = values(2, 6, 3, 2, dtype=dtype), values(6, dtype=dtype), values(6, dtype=dtype) + 1
    check(A.native_group_norm.default, x, weight, bias, 2, 6, 6, groups, 1e-5)
    _, mean, rstd = A.native_group_norm.default(x, weight, bias, 2, 6, 6, groups, 1e-5)
    grad = values(2, 6, 3, 2, dtype=dtype).flip(0)
    loose = 0.1 if dtype is torch.bfloat16 else None
    check(A.native_group_norm_backward.default, grad, x, mean, rstd, weight, 2, 6, 6, groups, ALL, atol=loose)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parameters", [None, torch.float32], ids=str)
def test_gradients_of_group_norm_have_the_dtypes_and_strides_of_the_cpu(
    dtype: torch.dtype, parameters: torch.dtype | None
) -> None:
    results = {}
    for device in ("cpu", "tpu"):
        x = values(2, 6, 3, 2, dtype=dtype).contiguous(memory_format=torch.channels_last).to(device).requires_grad_()
        weight, bias = (values(6, dtype=parameters or dtype).clone().to(device).requires_grad_() for _ in range(2))
        leaves = [x, weight, bias]
        output = torch.nn.functional.group_norm(x, 2, weight, bias)
        output.backward(torch.linspace(-1, 1, 2, device=device).to(dtype).expand(2, 6, 3, 2))
        results[device] = [output.detach(), *[leaf.grad for leaf in leaves]]
    for actual, expected in zip(results["tpu"], results["cpu"], strict=True):
        assert actual is not None and expected is not None
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected)


def test_group_norm_without_parameters() -> None:
    x = values(2, 6, 4)
    check(A.native_group_norm.default, x, None, None, 2, 6, 4, 3, 1e-5)
    _, mean, rstd = A.native_group_norm.default(x, None, None, 2, 6, 4, 3, 1e-5)
    mask = [True, False, False]
    check(A.native_group_norm_backward.default, values(2, 6, 4), x, mean, rstd, None, 2, 6, 4, 3, mask)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = values(3, 4, 5, dtype=dtype), values(5, dtype=dtype)
    check(A._fused_rms_norm.default, x, [5], weight, 1e-6)
    check(A._fused_rms_norm.default, x, [4, 5], None, None)
    if dtype is torch.bfloat16:
        return
    # The CPU has no kernel for the backward; this is the gradient of the composite.
    leaf, scale = x.clone().requires_grad_(), weight.clone().requires_grad_()
    grad = values(5, 4, 3, dtype=dtype).transpose(0, 2).contiguous()
    torch.nn.functional.rms_norm(leaf, [5], scale, 1e-6).backward(grad)
    rstd = A._fused_rms_norm.default(x, [5], weight, 1e-6)[1]
    from tests.aten.harness import run

    results = run(A._fused_rms_norm_backward.default, grad, x, [5], rstd, weight, [True, True], outs=[x, weight])
    torch.testing.assert_close(results, [leaf.grad, scale.grad])
