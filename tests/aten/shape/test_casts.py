"""Conversions and copies against torch's CPU."""

from __future__ import annotations

import math
import platform

import pytest
import torch

from tests.aten.batch import Case, check_all
from tests.aten.deferred import check
from tests.aten.samples import ALL, finite, normal

A = torch.ops.aten
EVERY = (*ALL, torch.int16, torch.uint16, torch.uint32, torch.complex128)


@pytest.mark.parametrize("source", EVERY, ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
def test_every_dtype_to_every_other(source: torch.dtype) -> None:
    values = finite(
        torch.complex64 if source.is_complex else torch.float64 if source.is_floating_point else torch.int64
    )
    if source is torch.bool:
        values = values != 0
    values = values.to(source)
    assert check_all([Case(A._to_copy.default, (values,), {"dtype": to}) for to in EVERY]) == len(EVERY)


def test_floats_wrap_around_in_narrow_integers() -> None:
    x = torch.tensor([300.0, -1.0, 255.9, -128.5, 70000.0, -40000.0, 1e6])
    narrow = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32)
    check_all([Case(A._to_copy.default, (x.to(d),), {"dtype": to}) for d in (x.dtype, torch.float64) for to in narrow])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="C++ leaves it to the machine")
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_out_of_range_of_integers_convert_as_on_x86(source: torch.dtype) -> None:
    """NaN, infinities, and floats at and beyond both ends of each dtype. (The CPU has two answers for uint32.)"""
    ends = [s * 2.0**n * f for n in (7, 8, 15, 16, 31, 32, 63, 64, 70) for s in (1, -1) for f in (1, 1 - 2.0**-8, 1.5)]
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, *ends], dtype=torch.float64).to(source)
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64)
    on_device = x.to("tpu")
    for dtype in integers:
        assert on_device.to(dtype).tolist() == x.to(dtype).tolist(), dtype
        assert on_device[0].to(dtype).item() == x[0].to(dtype).item(), dtype


def test_nan_is_true() -> None:
    check(A._to_copy.default, torch.tensor([math.nan, 0.0, -0.0, math.inf, 1e-30]), dtype=torch.bool)
    check(A._to_copy.default, torch.tensor([0j, 1j, 1 + 0j]), dtype=torch.bool)


def test_halves_are_rounded_through_f32() -> None:
    double = torch.tensor([1.0 + 2.0**-8 + 2.0**-40, 1.0 + 2.0**-11 + 2.0**-40, 1e30], dtype=torch.float64)
    integers = torch.tensor([257, 2**24 + 2**15 + 1, 2**40 + 3])
    halves = (torch.bfloat16, torch.float16)
    check_all([Case(A._to_copy.default, (x,), {"dtype": to}, exact=True) for x in (double, integers) for to in halves])


def test_copies_take_the_dtype_and_shape_of_the_destination() -> None:
    check(A.copy.default, torch.zeros(2, 3, dtype=torch.int32), torch.tensor([1.7, -2.9, 3.0]))
    check(A.copy_.default, torch.zeros(2, 3, dtype=torch.uint8), torch.tensor(-1.0))
    check(A.clone.default, normal(torch.bfloat16, 2, 3))
    check(A.alias_copy.default, normal(torch.float32, 0))
    check(A.lift_fresh_copy.default, normal(torch.float32, 2))
    check(A.detach_copy.default, normal(torch.float32, 2))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_fills(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 3, dtype=dtype)
    numbers = (1, True, 0.1) if dtype.is_floating_point or dtype.is_complex else (1, True)
    check_all([Case(A.fill.Scalar, (x, n)) for n in numbers] + [Case(A.fill.Tensor, (x, torch.tensor(1)))])
    check(A.fill_.Scalar, x, 1)
