"""Ops with data-dependent result sizes, which are read: nonzero, unique and similar, compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import pytest
import torch

import lazytpu

T = torch.tensor
ROW = T([2, 0, 1, 1, 0, 2, 2])
ROWS = T([[[1, 0], [0, 1]], [[0, 0], [1, 1]], [[1, 0], [0, 1]], [[0, 0], [1, 0]], [[0, 0], [1, 1]]])


def leaves(value: Any) -> list[Any]:
    return [v for nested in value for v in leaves(nested)] if isinstance(value, list | tuple) else [value]


def assert_same(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Compare values, dtypes, shapes and strides of the results on both devices, or the type of the exception."""
    results: list[Any] = []
    for device in ("cpu", "tpu"):
        moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in args]
        try:
            results.append([(r.cpu(), r.stride()) for r in leaves(f(*moved, **kwargs))])
        except (IndexError, RuntimeError) as error:
            results.append(type(error))
    if isinstance(results[0], type):
        assert results[1] is results[0]
        return
    for (want, stride), (got, actual_stride) in zip(*results, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
        assert actual_stride == stride or want.numel() < 2


@pytest.mark.parametrize("f", [torch.unique, torch.unique_consecutive], ids=lambda f: f.__name__)
def test_unique(f: Callable[..., Any]) -> None:
    assert_same(f, ROWS[:3], return_inverse=True, return_counts=True)
    assert_same(f, ROW > 1, return_inverse=True, return_counts=True)
    assert_same(f, ROWS.float(), dim=0, return_inverse=True, return_counts=True)
    assert_same(f, ROWS > 0, dim=2, return_inverse=True, return_counts=True)


def test_unique_of_nothing_and_of_nan() -> None:
    for x in (T([]), T(3), T([1.0, nan, 1.0, nan, -0.0, 0.0])):
        assert_same(torch.unique, x, return_inverse=True, return_counts=True)
    for shape in ((0, 3), (3, 0), (0, 0)):
        assert_same(torch.unique, torch.zeros(shape), dim=0, return_counts=True)
        assert_same(torch.unique_consecutive, torch.zeros(shape), dim=0)
    for x, dim in ((ROWS, 5), (T(3), 0), (torch.ones(2, dtype=torch.complex64), None)):
        assert_same(torch.unique, x, dim=dim)


def test_rows_are_sorted_in_one_loop() -> None:
    """The number of columns does not matter."""
    torch.manual_seed(0)
    assert_same(torch.unique, torch.randint(0, 2, (20, 300)).repeat(2, 1), dim=0, return_inverse=True)


def test_nonzero() -> None:
    for x in (ROWS, ROW, T(3), T(0), T([nan, 0.0, 1.0]), torch.zeros(2, 2), torch.zeros(0, 3), T([0, 1j])):
        assert_same(torch.nonzero, x)
    assert_same(torch.nonzero, ROWS, as_tuple=True)
    assert_same(torch.argwhere, ROWS)
    for size in (3, 30):
        assert_same(torch.nonzero_static, ROWS, size=size)


def test_masked_select() -> None:
    for x, mask in ((ROWS, ROWS > 0), (ROWS, T(True)), (T(3), T([True, False, True])), (ROWS, T(False))):
        assert_same(torch.masked_select, x, mask)


def test_bincount() -> None:
    for weights in (None, torch.arange(7.0), torch.arange(7)):
        assert_same(torch.bincount, ROW, weights)
    assert_same(torch.bincount, ROW, minlength=5)
    assert_same(torch.bincount, ROW[:0], minlength=2)
    for wrong in (T([1, -2]), T([[1]]), T([1.0]), T([True])):
        assert_same(torch.bincount, wrong)
    assert_same(torch.bincount, ROW, T([1.0]))


def test_repeat_interleave() -> None:
    assert_same(torch.repeat_interleave, ROW, 2)
    assert_same(torch.repeat_interleave, ROWS, T([2, 0, 1, 0, 3]), 0)
    assert_same(torch.repeat_interleave, T([1, 2, 0], dtype=torch.int32))
    assert_same(torch.repeat_interleave, T([1, 2, 0]), output_size=3)
    for wrong in (T([1, -2]), T([1.0]), T([[1]])):
        assert_same(torch.repeat_interleave, wrong)
    assert_same(torch.repeat_interleave, ROW[:3], T([1, 0, 2]), output_size=4)


def test_ops_without_a_count_read_nothing() -> None:
    x, repeats = torch.arange(3.0), T([1, 0, 2])
    mask = x > 0
    on_device = [t.to("tpu") for t in (x, repeats, mask)]
    reads = lazytpu.metrics()["steps"]
    results: list[list[torch.Tensor]] = []
    for row, times, chosen in ([x, repeats, mask], on_device):
        repeated = row.repeat_interleave(times, output_size=3)
        written, added, filled = row.clone(), row.clone(), row.masked_fill(chosen, 5)
        written[chosen] = 7
        added[chosen] = row[:2]
        results.append([repeated, written, added, filled])
    assert lazytpu.metrics()["steps"] == reads
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), want)
    with pytest.raises(RuntimeError, match="allocated size does not match"):
        on_device[0].repeat_interleave(on_device[1], output_size=4).cpu()


def test_equal() -> None:
    for second in (ROW, ROW.float(), ROW[1:], ROW + 1):
        assert torch.equal(ROW.to("tpu"), second.to("tpu")) == torch.equal(ROW, second)
