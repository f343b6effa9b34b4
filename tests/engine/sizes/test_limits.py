"""A bucket ends at the size of the tensor that is sliced, and several sizes in a trace have coarser bounds."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import lazytpu
from tests.engine.sizes.test_templates import programs

pytestmark = pytest.mark.usefixtures("bucketed")


def test_slices_of_a_tensor_whose_size_is_no_bound() -> None:
    """Slices of a table of 110 columns, where the bound would otherwise be 112."""
    host = torch.randn(3, 110)
    table = host.to("tpu")

    def steps() -> None:
        for n in (97, 109, 105, 98, 101, 108):
            torch.testing.assert_close((table[:, :n] * 2.5).sum(1).cpu(), (host[:, :n] * 2.5).sum(1))

    assert programs(steps) == 2


def test_writes_end_at_the_end_of_the_tensor() -> None:
    host = torch.zeros(4, 55)
    device = host.to("tpu")

    def steps() -> None:
        for n in (49, 51, 54, 50, 53):
            for x in (host, device):
                x[:, :n].add_(n).mul_(0.5)
            lazytpu.mark_step()

    assert programs(steps) == 2
    torch.testing.assert_close(device.cpu(), host)


def test_slices_of_tensors_of_varying_size() -> None:
    """Prefixes of a cache of varying length; the bound of the prefix fits into the padded tensor."""

    def steps() -> None:
        for n, of in ((9, 9), (40, 60), (35, 61), (33, 34), (62, 63), (64, 64)):
            host = torch.randn(3, of)
            torch.testing.assert_close((host.to("tpu")[:, :n] * 2.5).sum(1).cpu(), (host[:, :n] * 2.5).sum(1))

    assert programs(steps) == 2


def test_three_varying_sizes_have_coarser_bounds() -> None:
    """Each power of two is one bucket, so that one program covers 64 combinations of finer bounds."""
    first = [(9, 17, 33), (10, 20, 37), (12, 18, 40), (13, 25, 48)]  # the first samples suggest fewer symbols
    later = [(15, 31, 60), (16, 32, 64), (11, 29, 50), (14, 22, 44)]

    def steps(sizes: list[tuple[int, int, int]]) -> None:
        for n, m, k in sizes:
            x, y, z = torch.randn(n, m), torch.randn(m, k), torch.randn(k)
            got = ((x.to("tpu") @ y.to("tpu")).sigmoid() @ z.to("tpu")).cpu()
            torch.testing.assert_close(got, (x @ y).sigmoid() @ z, rtol=1e-4, atol=1e-4)

    assert programs(partial(steps, first)) <= 4
    assert programs(partial(steps, later)) == 0


def test_beam_search_tables_of_varying_lengths() -> None:
    """Beam search with a table for the text and its new tokens, and a table for the new tokens."""
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


def test_slices_with_varying_offsets() -> None:
    """Slices of a sliding cache: the size of the tensor, and the length and beginning of the slice all vary; one
    slice ends at the end of its tensor."""

    def steps() -> None:
        for begin, n, of in ((2, 9, 13), (7, 12, 31), (3, 20, 25), (0, 11, 40), (30, 5, 44), (50, 14, 64), (1, 2, 3)):
            host = torch.randn(3, of, 4)
            view = host.to("tpu")[:, begin : begin + n]
            torch.testing.assert_close((view * 2.5).sum(1).cpu(), (host[:, begin : begin + n] * 2.5).sum(1))

    assert programs(steps) <= 4
    assert "where a view begins, now" in str([program.notes for program in lazytpu.explain()])
