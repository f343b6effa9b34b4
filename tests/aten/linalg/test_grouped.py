"""Products of groups against torch's CPU: values, gradients, strides and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazytpu

ENDS = ([12, 24, 36, 48], [0, 13, 13, 48], [1, 2, 3, 48])
"""Even groups, odd and empty ones, and groups of one row."""
LENGTH = 48


def operands(form: str, groups: int, dtype: torch.dtype, columns: bool = False) -> list[torch.Tensor]:
    """Two operands of a form, with contiguous rows or columns."""
    shapes = {
        "rows": ((LENGTH, 8), (groups, 8, 24)),
        "columns": ((groups, 16, 8), (8, LENGTH)),
        "sums": ((16, LENGTH), (LENGTH, 24)),
    }
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(dtype) for shape in shapes[form]]
    return [x.transpose(-1, -2).contiguous().transpose(-1, -2) if columns else x for x in tensors]


def results(device: str, ends: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The product and its gradients."""
    leaves = [x.to(device).requires_grad_() for x in tensors]
    product = torch._grouped_mm(*leaves, offs=ends.to(device))
    return [product.detach(), *torch.autograd.grad((product.float() ** 2).sum(), leaves)]


@pytest.mark.parametrize("form", ["rows", "columns", "sums"])
@pytest.mark.parametrize(
    ("dtype", "columns"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.float16, True)],
)
def test_values_gradients_and_strides(form: str, dtype: torch.dtype, columns: bool) -> None:
    tensors = operands(form, 4, dtype, columns)
    close = {"rtol": 1e-5, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for ends in ENDS:
        offsets = torch.tensor(ends, dtype=torch.int32)
        expected, got = (results(device, offsets, tensors) for device in ("cpu", "tpu"))
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b.cpu(), a, **close)
            assert b.stride() == a.stride()


def test_batches() -> None:
    a, b = torch.randn(3, 8, 16), torch.randn(3, 16, 4)
    torch.testing.assert_close(torch._grouped_mm(a.to("tpu"), b.to("tpu")).cpu(), torch._grouped_mm(a, b))


def test_rows_of_no_group_are_zero_and_read_by_no_sum() -> None:
    """torch leaves the former unwritten."""
    a, b = operands("rows", 2, torch.float32)
    ends = torch.tensor([3, 40], dtype=torch.int32)
    a[40:] = float("nan")
    got = torch._grouped_mm(a.to("tpu"), b.to("tpu"), offs=ends.to("tpu")).cpu()
    torch.testing.assert_close(got[:40], torch._grouped_mm(a, b, offs=ends)[:40])
    assert not got[40:].any()
    sums = torch._grouped_mm(a.t().contiguous().to("tpu"), torch.ones(LENGTH, 4, device="tpu"), offs=ends.to("tpu"))
    assert sums.isfinite().all()


def test_ends_after_the_last_row_are_moved_to_it() -> None:
    a, b = operands("rows", 3, torch.float32)
    ends = torch.tensor([7, 60, 61], dtype=torch.int32)
    got = torch._grouped_mm(a.to("tpu"), b.to("tpu"), offs=ends.to("tpu"))
    torch.testing.assert_close(got.cpu(), torch._grouped_mm(a, b, offs=ends))


def test_ends_that_descend_are_refused() -> None:
    a, b = operands("rows", 3, torch.float32)
    for ends in ([7, 6, 48], [-1, 6, 48]):
        got = torch._grouped_mm(a.to("tpu"), b.to("tpu"), offs=torch.tensor(ends, dtype=torch.int32, device="tpu"))
        with pytest.raises(RuntimeError, match="ascending"):
            got.tolist()


def test_rows_that_are_not_aligned_have_gaps() -> None:
    wide = torch.randn(2, 8, 8)
    a, b, ends = torch.randn(6, 8), wide[..., :5], torch.tensor([2, 6], dtype=torch.int32)
    expected = torch._grouped_mm(a, b, offs=ends)
    got = torch._grouped_mm(a.to("tpu"), wide.to("tpu")[..., :5], offs=ends.to("tpu"))
    assert got.stride() == expected.stride() == (8, 1)
    torch.testing.assert_close(got.cpu(), expected)


def test_nothing() -> None:
    for rows, groups, width in ((0, 2, 8), (4, 2, 0)):
        a, b = torch.ones(rows, 8, device="tpu"), torch.ones(groups, 8, width or 8, device="tpu")[..., :width]
        ends = torch.tensor([rows // 2, rows], dtype=torch.int32, device="tpu")
        assert torch._grouped_mm(a, b, offs=ends).shape == (rows, width)


A, B, ENDS_OF_2 = (6, 8), (2, 8, 4), torch.tensor([2, 6], dtype=torch.int32)
REFUSED: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda on: torch._grouped_mm(on(torch.ones(A).double()), on(torch.ones(B)), offs=on(ENDS_OF_2)),
    "dtypes": lambda on: torch._grouped_mm(on(torch.ones(A)), on(torch.ones(B).half()[..., :8]), offs=on(ENDS_OF_2)),
    "dims": lambda on: torch._grouped_mm(on(torch.ones(8)), on(torch.ones(B)), offs=on(ENDS_OF_2)),
    "sum": lambda on: torch._grouped_mm(on(torch.ones(6, 4)), on(torch.ones(B)), offs=on(ENDS_OF_2)),
    "strides": lambda on: torch._grouped_mm(on(torch.ones(6, 5)), on(torch.ones(2, 5, 4)), offs=on(ENDS_OF_2)),
    "overlap": lambda on: torch._grouped_mm(on(torch.ones(1, 8)).expand(6, 8), on(torch.ones(B)), offs=on(ENDS_OF_2)),
    "no offsets": lambda on: torch._grouped_mm(on(torch.ones(A)), on(torch.ones(B))),
    "offsets of i64": lambda on: torch._grouped_mm(on(torch.ones(A)), on(torch.ones(B)), offs=on(ENDS_OF_2.long())),
    "offsets of 2 dims": lambda on: torch._grouped_mm(on(torch.ones(A)), on(torch.ones(B)), offs=on(ENDS_OF_2[None])),
    "too few": lambda on: torch._grouped_mm(on(torch.ones(A)), on(torch.ones(B)), offs=on(ENDS_OF_2[:1])),
    "batches": lambda on: torch._grouped_mm(on(torch.ones(3, 4, 8)), on(torch.ones(B))),
    "bias": lambda on: torch._grouped_mm(
        on(torch.ones(A)), on(torch.ones(B)), offs=on(ENDS_OF_2), bias=on(torch.ones(4))
    ),
    "result": lambda on: torch._grouped_mm(
        on(torch.ones(A)), on(torch.ones(B)), offs=on(ENDS_OF_2), out_dtype=torch.float16
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_operands_that_the_cpu_refuses(case: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        REFUSED[case](lambda x: x)
    with pytest.raises(RuntimeError) as got:
        REFUSED[case](lambda x: x.to("tpu"))
    assert str(got.value).splitlines()[0].startswith(str(expected.value).splitlines()[0])


def test_routing_makes_no_program() -> None:
    """The sizes of the groups are no sizes of tensors."""
    weights = torch.randn(4, 8, 8).to("tpu").requires_grad_()

    def step(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(32, 8, generator=generator).to("tpu")
        to = torch.randint(4, (32,), generator=generator).to("tpu")
        order = to.argsort(stable=True)
        ends = torch.nn.functional.one_hot(to, 4).sum(0).cumsum(0, dtype=torch.int32)
        torch._grouped_mm(x[order], weights, offs=ends).square().mean().backward()
        lazytpu.mark_step()
        assert weights.grad is not None
        return weights.grad.sum()

    for seed in range(3):
        step(seed).item()
    compiled = lazytpu.metrics()["compiles"]
    for seed in range(3, 9):
        step(seed).item()
    assert lazytpu.metrics()["compiles"] == compiled
