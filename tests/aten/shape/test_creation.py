"""Tensors created from numbers and shapes, against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ALL = [*FLOATS, torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_arange(dtype: torch.dtype) -> None:
    check(A.arange.start_step, 0, 7, 1, dtype=dtype)
    check(A.arange.start_step, 1, 20, 3, dtype=dtype)
    check(A.arange.start_step, 0.0, 5.0, 1.5 if dtype.is_floating_point else 2.0, dtype=dtype)


def test_arange_of_floats() -> None:
    check(A.arange.start_step, 0.1, 40.0, 0.3, dtype=torch.float32)
    check(A.arange.start_step, 5.0, -4.0, -0.7, dtype=torch.float64)
    check(A.arange.start_step, 5, 5, 1, dtype=torch.float32)
    check(A.arange.start_step, 2**24 - 3, 2**24 + 9, 3, dtype=torch.float32)
    check(A.arange.start_step, 2**40, 2**40 + 9, 2, dtype=torch.int64)
    check(A.arange.default, 6, dtype=torch.int64)
    check(A.arange.start, 2, 6, dtype=torch.float32)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_spaces(dtype: torch.dtype) -> None:
    for steps in (0, 1, 2, 7, 50):
        check(A.linspace.default, 1.0, 7.7, steps, dtype=dtype)
    check(A.linspace.default, 7.7, 0.2, 9, dtype=dtype)
    check(A.logspace.default, 0.0, 2.2, 9, dtype=dtype)
    check(A.logspace.default, 0.0, 2.2, 9, 3.0, dtype=dtype)


def test_spaces_between_tensors() -> None:
    start, nine = torch.tensor(1.5), torch.tensor(9.25)
    check(A.linspace.Tensor_Tensor, start, nine, 6, dtype=torch.float32)
    check(A.linspace.Tensor_Scalar, start, 9.0, 6, dtype=torch.float32)
    check(A.linspace.Scalar_Tensor, 1.0, nine, 6, dtype=torch.int32)
    check(A.logspace.Tensor_Tensor, start, nine, 6, dtype=torch.float64)
    check(A.linspace.default, 1 + 1j, 3 - 2j, 5, dtype=torch.complex64)


@pytest.mark.parametrize("dtype", [*ALL, torch.bool, torch.complex64, torch.int8], ids=str)
def test_filled(dtype: torch.dtype) -> None:
    x = torch.ones(2, 3, dtype=dtype)
    check(A.full.default, [2, 3], 1, dtype=dtype)
    check(A.full_like.default, x, 1.0)
    check(A.new_full.default, x, [4], True)
    check(A.scalar_tensor.default, 1, dtype=dtype)
    for op in (A.zeros_like.default, A.ones_like.default, A.zero.default):
        check(op, x)
    for op in (A.new_zeros.default, A.new_ones.default):
        check(op, x, [0, 5])
    for op in (A.zeros.default, A.ones.default):
        check(op, [3], dtype=dtype)


def test_numbers() -> None:
    check(A.full.default, [2], 2.5, dtype=torch.float32)
    check(A.full.default, [2], 1 + 2j, dtype=torch.complex64)
    check(A.full.default, [2], 2**40, dtype=torch.int64)
    check(A.full.default, [], -2.75, dtype=torch.int32)
    check(A.full_like.default, torch.ones(2), 3, dtype=torch.int64)
    check(A.zero_.default, torch.ones(2, 2))


def test_eye() -> None:
    check(A.eye.default, 3, dtype=torch.float32)
    check(A.eye.m, 2, 5, dtype=torch.int64)
    check(A.eye.m, 5, 2, dtype=torch.bool)


@pytest.mark.parametrize("offset", [-7, -2, 0, 1, 7])
def test_triangles(offset: int) -> None:
    for rows, columns in ((4, 4), (3, 6), (6, 3), (0, 3)):
        check(A.tril_indices.default, rows, columns, offset, dtype=torch.int64)
        check(A.triu_indices.default, rows, columns, offset, dtype=torch.int32)


def test_large_triangles() -> None:
    check(A.tril_indices.default, 200, 190, -3, dtype=torch.int64)
    check(A.triu_indices.default, 200, 190, -3, dtype=torch.int32)
