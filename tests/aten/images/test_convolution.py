"""Convolutions and their gradients, against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
# input, weight (of the convolution, or transposed: in, out / groups), stride, padding, dilation, output padding, groups
PLAIN = [
    ((2, 3, 7), (4, 3, 3), [1], [1], [1], [0], 1),
    ((2, 3, 9), (4, 3, 4), [3], [0], [2], [1], 1),
    ((2, 3, 8, 7), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], [0, 0], 1),
    ((2, 3, 9, 8), (4, 3, 3, 2), [2, 3], [1, 0], [1, 2], [1, 0], 1),
    ((1, 2, 5, 5), (3, 2, 1, 1), [2, 2], [0, 0], [1, 1], [1, 1], 1),
    ((1, 2, 4, 4), (3, 2, 1, 2), [1, 1], [1, 2], [1, 1], [0, 0], 1),
    ((2, 2, 5, 6, 4), (3, 2, 3, 2, 3), [1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 0], 1),
    ((1, 2, 7, 6, 8), (3, 2, 3, 2, 2), [2, 2, 3], [1, 0, 1], [1, 2, 1], [1, 1, 1], 1),
]
GROUPED = [
    ((2, 6, 8), (6, 1, 3), [2], [1], [1], [0], 6),
    ((2, 4, 9, 8), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], [0, 0], 4),
    ((2, 4, 9, 8), (8, 1, 3, 2), [2, 2], [1, 0], [1, 2], [1, 1], 4),
    ((2, 4, 8, 8), (6, 2, 3, 3), [2, 1], [1, 1], [1, 1], [1, 0], 2),
    ((2, 20, 6, 6), (20, 2, 3, 3), [1, 2], [1, 1], [1, 1], [0, 1], 10),
    ((2, 4, 11, 11), (4, 1, 9, 9), [1, 1], [4, 4], [1, 1], [0, 0], 4),
    ((2, 4, 5, 6, 4), (4, 2, 2, 3, 2), [2, 1, 2], [1, 1, 0], [1, 1, 1], [0, 0, 0], 2),
    ((1, 3, 5, 6, 4), (3, 1, 2, 3, 2), [1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0], 3),
]
CASES = PLAIN + GROUPED


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randint(-3, 4, shape) if not dtype.is_floating_point else torch.randn(shape).to(dtype)


def transposed(case: tuple) -> tuple:
    """The case of the transposed convolution from the result back: its weight has the shape [in, out / groups, …]
    already."""
    x, w, stride, padding, dilation, extra, groups = case
    y = A.convolution(torch.empty(x), torch.empty(w), None, stride, padding, dilation, False, extra, groups)
    return tuple(y.shape), w, stride, padding, dilation, [min(e, s - 1) for e, s in zip(extra, stride)], groups


def agree(op: OpOverload, *args: Any, dtype: torch.dtype) -> None:
    """Compare half precision with results in float32: the CPU's own kernels round intermediate sums, differently on
    different CPUs."""
    if dtype not in HALVES:
        check(op, *args, rtol=1e-4, atol=1e-4)
        return
    wide = op(*(a.float() if isinstance(a, torch.Tensor) else a for a in args))
    wanted = [r.to(dtype) for r in (wide if isinstance(wide, tuple) else [wide])]
    torch.testing.assert_close(run(op, *args, outs=wanted), wanted, rtol=1e-2, atol=5e-2)


def check_all(case: tuple, dtype: torch.dtype, is_transposed: bool) -> None:
    shape, weight, stride, padding, dilation, extra, groups = case
    x, w = values(*shape, dtype=dtype), values(*weight, dtype=dtype)
    features = weight[1] * groups if is_transposed else weight[0]
    options = (stride, padding, dilation, is_transposed, extra if is_transposed else [0] * len(stride), groups)
    agree(A.convolution.default, x, w, values(features, dtype=dtype), *options, dtype=dtype)
    if dtype.is_floating_point:
        grad = torch.randn(A.convolution(x, w, None, *options).shape).to(dtype)
        args = (grad, x, w, [features], *options, [True, True, True])
        agree(A.convolution_backward.default, *args, dtype=dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_f32(case: tuple) -> None:
    check_all(case, torch.float32, False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transposed_f32(case: tuple) -> None:
    check_all(transposed(case), torch.float32, True)


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES, torch.int64], ids=str)
@pytest.mark.parametrize("case", [PLAIN[3], PLAIN[6], GROUPED[2], GROUPED[3]], ids=str)
def test_dtypes(case: tuple, dtype: torch.dtype) -> None:
    if dtype != torch.int64 or case[-1] == 1:
        check_all(case, dtype, False)


def test_bf16_sums_in_f32() -> None:
    x, w = torch.ones(1, 512, 3, dtype=torch.bfloat16), torch.ones(2, 512, 3, dtype=torch.bfloat16)
    check(A.convolution.default, x, w, None, [1], [0], [1], False, [0], 1, rtol=0.0, atol=0.0)
    x[:, 1:], w[:, 1:] = 2**-9, 2**-9
    check(A.convolution.default, x, w, None, [1], [0], [1], False, [0], 1, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]], ids=str)
def test_masks(mask: list[bool]) -> None:
    x, w, grad = values(2, 3, 6, 6), values(4, 3, 3, 3), values(2, 4, 4, 4)
    options = ([4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    all_gradients = A.convolution_backward.default(grad, x, w, *options, [True] * 3)
    selected = [g for g, asked in zip(all_gradients, mask, strict=True) if asked]
    got = run(A.convolution_backward.default, grad, x, w, *options, mask, outs=selected)
    torch.testing.assert_close(got, selected, rtol=1e-4, atol=1e-4)


def test_output_padding_beyond_stride() -> None:
    check_all(((1, 2, 4, 4), (2, 2, 4, 5), [3, 2], [1, 2], [4, 4], [2, 3], 2), torch.float32, True)
    check_all(((1, 2, 4, 4), (2, 3, 2, 2), [1, 1], [0, 0], [3, 3], [2, 1], 1), torch.float32, True)


def test_empty_batch_and_short_lists() -> None:
    w = values(8, 2, 3, 3)
    x, grad = torch.ones(0, 4, 6, 6), torch.ones(0, 8, 6, 6)
    check(A.convolution.default, x, w, values(8), [1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    args = ([8], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True, True, True])
    check(A.convolution_backward.default, grad, x, w, *args)
    check(A.convolution.default, values(2, 2, 6, 6), w, None, [2], [1], [1], False, [0], 1, rtol=1e-4, atol=1e-5)
