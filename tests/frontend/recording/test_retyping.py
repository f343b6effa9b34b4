"""Bytes that are written as numbers, and bools that are written as bytes, change their dtype, invisibly to the user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.frontend.tensors import value_of


def cache(device: str, make: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bytes, and rows of numbers that view a part of them."""
    raw = make(4 * 24, dtype=torch.uint8, device=device)
    raw.fill_(7)
    return raw, raw.view(torch.float32)[3:18].view(5, 3)


def rows_written(device: str, make: Callable[..., torch.Tensor] = torch.zeros) -> list[torch.Tensor]:
    raw, rows = cache(device, make)
    for step in range(3):
        rows.index_copy_(0, torch.tensor([4, step], device=device), torch.full((2, 3), 1.5 + step, device=device))
        lazytpu.mark_step()
    raw[1:3] = 9  # a write of bytes to memory that has another dtype now
    rows[1] += 0.25
    return [raw.cpu(), rows.cpu(), raw[10:20].clone().cpu(), raw.view(torch.int16).cpu()]


@pytest.mark.parametrize("make", [torch.zeros, torch.empty])
def test_values_equal_the_cpus(make: Callable[..., torch.Tensor]) -> None:
    for got, expected in zip(rows_written("tpu", make), rows_written("cpu", make), strict=True):
        assert torch.equal(got, expected)


def test_a_storage_is_changed_once() -> None:
    raw, rows = cache("tpu", torch.zeros)
    assert value_of(raw).layout.dtype is torch.uint8
    rows += 1
    assert value_of(raw) is value_of(rows)
    assert value_of(raw).layout.dtype is torch.float32
    assert (raw.dtype, raw.shape, raw.untyped_storage().nbytes()) == (torch.uint8, (96,), 96)
    raw[:4] = 0
    assert value_of(raw).layout.dtype is torch.float32
    assert rows.cpu().eq(rows.cpu()[0, 0]).all()


def test_memory_that_nothing_has_written_takes_no_program() -> None:
    raw = torch.empty(16, dtype=torch.uint8, device="tpu")
    before = lazytpu.metrics()["records"]
    raw.view(torch.float32).fill_(2.5)
    lazytpu.sync()
    assert lazytpu.metrics()["records"] - before == 1
    assert raw.view(torch.float32).tolist() == [2.5] * 4


@pytest.mark.parametrize("mode", ["strict", "debug", "lazy"])
def test_in_other_modes(mode: str) -> None:
    with lazytpu.mode(mode):
        got = rows_written("tpu")
    for actual, expected in zip(got, rows_written("cpu"), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("count", [1, 3])
def test_a_step_that_writes_rows_moves_no_more_of_a_large_cache(count: int) -> None:
    raw = torch.zeros(4 << 20, dtype=torch.uint8, device="tpu")
    rows = raw.view(torch.float32)[64:].view(-1, 64)
    index, values = torch.arange(count, device="tpu"), torch.ones(count, 64, device="tpu")
    for _ in range(3):
        rows.index_copy_(0, index, values)
        torch.tpu.reset_peak_memory_stats()
        before = torch.tpu.memory_allocated()  # the cache, and what other tests of the process keep
        lazytpu.sync()
    assert torch.tpu.max_memory_allocated() - before < 0.5 * (4 << 20)
    assert rows[:count].sum().item() == 64 * count


def bytes_of_bools(device: str) -> list[object]:
    """Write bytes other than 0 and 1 to bools: to all, to some, in another order of memory, to one, with `out=`."""
    flags = torch.tensor([True, False, True], device=device)
    flags.view(torch.uint8).add_(3)
    turned = torch.zeros(2, 3, 4, dtype=torch.bool, device=device).permute(2, 0, 1)
    turned.view(torch.uint8)[1].fill_(9)
    some = torch.ones(4, dtype=torch.bool, device=device)
    some[1:3].view(torch.int8).sub_(2)
    one = torch.tensor(True, device=device)
    one.view(torch.int8).mul_(7)
    unwritten = torch.empty(3, dtype=torch.bool, device=device)
    torch.add(torch.tensor([1, 255, 4], dtype=torch.uint8, device=device), 1, out=unwritten.view(torch.uint8))
    written = (flags, turned, some, one, unwritten)
    assert turned.stride() == (1, 12, 4)
    return [value for x in written for value in (x.tolist(), x.view(torch.uint8).tolist(), x.logical_not().tolist())]


@pytest.mark.parametrize("mode", ["fused", "strict", "debug", "lazy"])
def test_bools_that_are_written_as_bytes(mode: str) -> None:
    with lazytpu.mode(mode):
        got = bytes_of_bools("tpu")
    assert got == bytes_of_bools("cpu")
