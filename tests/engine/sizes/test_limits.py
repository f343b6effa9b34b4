"""A bucket ends where a tensor does, and many sizes at once have fewer bounds."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import lazytpu
from tests.engine.sizes.test_templates import programs

pytestmark = pytest.mark.usefixtures("bucketed")


def test_parts_of_a_tensor_whose_size_is_no_bound() -> None:
    """Columns of a table that has 110: the bound of the last ones would be 112."""
    host = torch.randn(3, 110)
    table = host.to("tpu")

    def steps() -> None:
        for n in (97, 109, 105, 98, 101, 108):
            torch.testing.assert_close((table[:, :n] * 2.5).sum(1).cpu(), (host[:, :n] * 2.5).sum(1))

    assert programs(steps) == 2


def test_writes_end_at_the_tensor() -> None:
    host = torch.zeros(4, 55)
    device = host.to("tpu")

    def steps() -> None:
        for n in (49, 51, 54, 50, 53):
            for x in (host, device):
                x[:, :n].add_(n).mul_(0.5)
            lazytpu.mark_step()

    assert programs(steps) == 2
    torch.testing.assert_close(device.cpu(), host)


def test_parts_of_tensors_that_vary_too() -> None:
    """As of a cache that is cut to some of its tokens: the tensor has room for the greatest part when it is large."""

    def steps() -> None:
        for n, of in ((9, 9), (40, 60), (35, 61), (33, 34), (62, 63), (64, 64)):
            host = torch.randn(3, of)
            torch.testing.assert_close((host.to("tpu")[:, :n] * 2.5).sum(1).cpu(), (host[:, :n] * 2.5).sum(1))

    assert programs(steps) == 2


def test_three_sizes_at_once_have_fewer_bounds() -> None:
    """Each power of two is one bucket: 64 ways to combine four bounds of each are one program."""
    firsts = [(9, 17, 33), (10, 20, 37), (12, 18, 40), (13, 25, 48)]  # of which two show forms of fewer sizes
    more = [(15, 31, 60), (16, 32, 64), (11, 29, 50), (14, 22, 44)]

    def steps(sizes: list[tuple[int, int, int]]) -> None:
        for n, m, k in sizes:
            x, y, z = torch.randn(n, m), torch.randn(m, k), torch.randn(k)
            got = ((x.to("tpu") @ y.to("tpu")).sigmoid() @ z.to("tpu")).cpu()
            torch.testing.assert_close(got, (x @ y).sigmoid() @ z, rtol=1e-4, atol=1e-4)

    assert programs(partial(steps, firsts)) <= 4
    assert programs(partial(steps, more)) == 0


def test_tables_of_texts_of_other_lengths() -> None:
    """As of beam search: a table with room for the text and its new tokens, and one for these alone."""
    new = 6

    def write(length: int, device: str) -> torch.Tensor:
        text, beams = torch.zeros(3, length + new).to(device), torch.zeros(3, new).to(device)
        text[:, :length] = 1.0
        for n in range(length, length + new):
            text[:, n] = text[:, :n].mean(1) + beams[:, n - length]
            beams[:, n - length] = text[:, n] * 0.5
            lazytpu.mark_step()
        return text.cpu()

    def steps(*lengths: int) -> None:
        for length in lengths:
            torch.testing.assert_close(write(length, "tpu"), write(length, "cpu"))

    assert programs(partial(steps, 7)) <= 3
    assert programs(partial(steps, 12)) <= 3
    assert programs(partial(steps, 9, 15)) == 0


def test_parts_that_begin_anywhere() -> None:
    """As of a cache of the last tokens, of which some are taken back: the tensor, how many are taken and where they
    begin all vary, and the last part fills the tensor."""

    def steps() -> None:
        for begin, n, of in ((2, 9, 13), (7, 12, 31), (3, 20, 25), (0, 11, 40), (30, 5, 44), (50, 14, 64), (1, 2, 3)):
            host = torch.randn(3, of, 4)
            part = host.to("tpu")[:, begin : begin + n]
            torch.testing.assert_close((part * 2.5).sum(1).cpu(), (host[:, begin : begin + n] * 2.5).sum(1))

    assert programs(steps) <= 4
    assert "where a view begins, now" in str([made.notes for made in lazytpu.explain()])
