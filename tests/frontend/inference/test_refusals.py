"""Calls that the CPU rejects are rejected at the call, with its exception type and message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

REFUSED: dict[str, Callable[[str], object]] = {
    "max of nothing": lambda d: torch.ones(0, device=d).max(),
    "max along nothing": lambda d: torch.ones(0, 3, device=d).max(0),
    "max along one of 65 dims": lambda d: torch.ones([1] * 65, device=d).max(0),
    "argmin along one of 65 dims": lambda d: torch.ones([1] * 65, device=d).argmin(0),
    "nansum along one of 65 dims": lambda d: torch.ones([1] * 65, device=d).nansum(0),
    "flip of 65 dims": lambda d: torch.ones([1] * 65, device=d).flip(0),
    "sort, dim": lambda d: torch.ones(5, device=d).sort(1),
    "sort, complex": lambda d: torch.ones(5, dtype=torch.complex64, device=d).sort(),
    "var, integers": lambda d: torch.ones(5, dtype=torch.int64, device=d).var(),
    "std, mean, integers": lambda d: torch.std_mean(torch.ones(5, dtype=torch.int64, device=d)),
    "pow, negative": lambda d: torch.ones(5, dtype=torch.int64, device=d) ** -1,
    "pow, negative, in place": lambda d: torch.ones(5, dtype=torch.int64, device=d).pow_(-1),
    "pow of lists, negative": lambda d: torch._foreach_pow([torch.ones(5, dtype=torch.int64, device=d)], -1),
    "pow_ of lists, one negative": lambda d: torch._foreach_pow_([torch.ones(5, device=d).char()] * 2, [2, -1]),
    "labels": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(2, dtype=torch.int32, device=d)),
    "channels": lambda d: F.conv_transpose1d(torch.ones(1, 2, 3, device=d), torch.ones(3, 2, 2, device=d)),
    "complex parts": lambda d: torch.complex(torch.ones(2, device=d), torch.ones(2, dtype=torch.int32, device=d)),
    "embedding of no table": lambda d: F.embedding(
        torch.ones(2, dtype=torch.int64, device=d), torch.ones((), device=d)
    ),
    "narrow_copy, dim": lambda d: torch.narrow_copy(torch.ones(2, 2, device=d), 3, 0, 1),
    "eq_, broadcast": lambda d: torch.ones(4, device=d).eq_(torch.ones(2, 4, device=d)),
    "ne_, smaller": lambda d: torch.ones(5, 1, device=d).ne_(torch.ones(5, device=d)),
    "floor_divide_, broadcast": lambda d: torch.ones(1, device=d).floor_divide_(torch.ones(5, device=d)),
    "nextafter_, broadcast": lambda d: torch.ones(1, device=d).nextafter_(torch.ones(5, device=d)),
    "addr_, shape": lambda d: torch.ones(10, device=d).addr_(torch.ones(5, device=d), torch.ones(10, device=d)),
    "add_ of lists, broadcast": lambda d: torch._foreach_add_([torch.ones(1, device=d)], [torch.ones(2, device=d)]),
    "as_strided_": lambda d: torch.ones(3, device=d).as_strided_((2, 2), (1, 2)),
    "relu_ of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).relu_(),
    "abs_ of complex": lambda d: torch.ones(3, dtype=torch.complex64, device=d).abs_(),
    "abs_ of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).sub_(torch.ones(3, device=d)),
    "argmax of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).argmax(),
    "argmax of many truths": lambda d: torch.ones(3000, 20, dtype=torch.bool, device=d).argmax(1),
    "median of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).median(),
    "nanmedian of truths, dim": lambda d: torch.ones(3, 2, dtype=torch.bool, device=d).nanmedian(0),
    "topk of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).topk(1),
    "kthvalue of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).kthvalue(1),
    "ceil of complex": lambda d: torch.ones(3, dtype=torch.complex64, device=d).ceil(),
    "prelu of integers": lambda d: F.prelu(*[torch.ones(3, dtype=torch.int8, device=d)] * 2),
    "pooling of truths": lambda d: F.adaptive_max_pool2d(torch.ones(1, 4, 4, dtype=torch.bool, device=d), 2),
    "pooling of many integers": lambda d: F.avg_pool3d(torch.ones(9, 16, 16, 16, dtype=torch.int32, device=d), 2),
    "interpolation of integers": lambda d: F.interpolate(
        torch.ones(1, 1, 4, 4, dtype=torch.int64, device=d), size=(2, 2), mode="bicubic"
    ),
    "grid of integers": lambda d: F.grid_sample(
        torch.ones(1, 1, 4, 4, device=d), torch.ones(1, 2, 2, 2, dtype=torch.int64, device=d), align_corners=False
    ),
    "weights of labels": lambda d: F.nll_loss(
        torch.ones(2, 3, device=d), torch.ones(2, dtype=torch.int64, device=d), torch.ones(3, device=d).double()
    ),
    "addmm, dtypes": lambda d: torch.addmm(
        torch.ones(2, 2, dtype=torch.int8, device=d), *[torch.ones(2, 2, dtype=torch.int64, device=d)] * 2
    ),
    "cumprod_ of truths": lambda d: torch.ones(3, dtype=torch.bool, device=d).cumprod_(0),
    "broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "matrices": lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 5, device=d),
    "matrices, dtypes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(3, 5, dtype=torch.float64, device=d),
    "softmax, dim": lambda d: torch.softmax(torch.ones(4, device=d), 5),
    "softmax, dim below": lambda d: torch.softmax(torch.ones(4, 2, device=d), -4),
    "softmax, dim of many": lambda d: torch.softmax(torch.ones(300, 200, device=d), 2),
    "mode along nothing": lambda d: torch.ones(2, 0, device=d).mode(-1),
    "median along nothing": lambda d: torch.ones(0, dtype=torch.int32, device=d).median(0),
    "nanmedian along nothing": lambda d: torch.ones(2, 0, device=d).nanmedian(1),
    "roll of nothing, shifts": lambda d: torch.ones(0, 3, device=d).roll(()),
    "roll of nothing, dims": lambda d: torch.ones(0, 3, device=d).roll((1, 2), (0,)),
    "pooling of nothing": lambda d: F.adaptive_avg_pool1d(torch.ones(3, 0, device=d), 5),
    "pooling of no rows": lambda d: F.adaptive_avg_pool3d(torch.ones(3, 2, 0, 1, device=d), 5),
    "too few strides": lambda d: torch.ones(2, device=d).new_empty_strided((2, 2, 3), (4,)),
    "too many strides": lambda d: torch.empty_strided((2,), (4, 1), device=d),
    "huber loss of integers": lambda d: F.huber_loss(
        torch.ones(2, dtype=torch.int32, device=d), torch.ones(2, device=d)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_as_on_the_cpu(name: str) -> None:
    errors: list[tuple[type[BaseException], str]] = []
    for device in ("cpu", "tpu"):
        with pytest.raises(Exception) as error:
            REFUSED[name](device)
        errors.append((error.type, str(error.value)))
    assert errors[1] == errors[0]


TARGETS: dict[str, tuple[Callable[..., object], torch.dtype, torch.dtype]] = {
    "isposinf": (torch.isposinf, torch.float32, torch.float32),
    "isneginf": (torch.isneginf, torch.int32, torch.uint8),
    "signbit": (torch.signbit, torch.float32, torch.float32),
    "floor": (torch.floor, torch.int64, torch.float32),
    "ceil": (torch.ceil, torch.int64, torch.float32),
    "trunc": (torch.trunc, torch.int64, torch.float32),
    "round": (torch.round, torch.int64, torch.float32),
    "bitwise_not": (torch.bitwise_not, torch.int32, torch.float32),
    "nan_to_num": (torch.nan_to_num, torch.uint8, torch.float32),
    "sign": (torch.sign, torch.bool, torch.float32),
    "sgn": (torch.sgn, torch.bool, torch.float32),
    "conj_physical": (torch.conj_physical, torch.int32, torch.float32),
}


@pytest.mark.parametrize("size", [3, 3_000_000], ids=["small", "large"])
@pytest.mark.parametrize("name", TARGETS)
def test_targets_of_another_dtype(name: str, size: int) -> None:
    op, operands, target = TARGETS[name]
    errors: list[tuple[type[BaseException], str]] = []
    for device in ("cpu", "tpu"):
        x, out = torch.ones(size, dtype=operands, device=device), torch.ones(size, dtype=target, device=device)
        with pytest.raises(Exception) as error:
            op(x, out=out)
        errors.append((error.type, str(error.value)))
    assert errors[1] == errors[0]


def test_a_refusal_keeps_recorded_ops() -> None:
    before = torch.arange(3.0, device="tpu") + 1
    for refused in ("softmax, dim", "mode along nothing", "roll of nothing, dims"):
        with pytest.raises((IndexError, RuntimeError)):
            REFUSED[refused]("tpu")
    assert before.tolist() == [1, 2, 3]


ACCEPTED: dict[str, Callable[[str], torch.Tensor]] = {
    "softmax": lambda d: torch.softmax(torch.ones(0, 3, dtype=torch.int32, device=d), 0),
    "softmax of truths": lambda d: torch.softmax(torch.ones(0, dtype=torch.bool, device=d), 0),
    "log_softmax": lambda d: torch.log_softmax(torch.ones(0, 3, dtype=torch.int32, device=d), 0),
    "log_normal_": lambda d: torch.ones(0, 3, dtype=torch.bool, device=d).log_normal_(),
    "exponential_": lambda d: torch.ones(0, 3, dtype=torch.int64, device=d).exponential_(),
    "nansum over no dims": lambda d: torch.nansum(torch.ones(2, 3, device=d), ()),
    "nansum, kept": lambda d: torch.nansum(torch.ones(2, 3, dtype=torch.int32, device=d), (), True),
    "huber loss": lambda d: F.huber_loss(torch.ones(2, device=d), torch.zeros(2, dtype=torch.float64, device=d)),
    "huber loss of halves": lambda d: F.huber_loss(
        torch.ones(2, dtype=torch.bfloat16, device=d), torch.zeros(2, device=d), reduction="none"
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_as_on_the_cpu(name: str) -> None:
    torch.testing.assert_close(ACCEPTED[name]("tpu").cpu(), ACCEPTED[name]("cpu"), rtol=0, atol=0)


def test_half_precision_is_rejected_only_where_float32_is() -> None:
    """The CPU has no kernel for it; an accelerator computes in nothing else."""
    x = torch.ones(1, 1, 4, 4, 4, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError):
        F.avg_pool3d(x, 2)
    assert F.avg_pool3d(x.to("tpu"), 2).cpu().sum() == 8.0
    with pytest.raises(NotImplementedError):
        x.to("tpu").bitwise_and_(x.to("tpu"))


def test_large_tensors_are_rejected_with_the_same_message() -> None:
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(9000x8000 and 9000x8000\)"):
        torch.empty(9000, 8000, device="tpu") @ torch.empty(9000, 8000, device="tpu")
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(9000\) must match the size of tensor b \(8000\)"):
        torch.empty(8000, 9000, device="tpu") + torch.empty(9000, 8000, device="tpu")


def test_huge_tensors_are_rejected_without_calling_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.empty(1 << 20, 1 << 12, dtype=torch.int64, device="tpu") ** -1
