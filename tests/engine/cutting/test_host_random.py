"""Random ops of varying traces run on the host and draw the numbers of their programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.engine.cutting import families, on_host

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def varying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each short trace count as one that varies, as the second of its family."""
    monkeypatch.setattr(on_host, "BESIDE", 0)
    monkeypatch.setattr(families, "SHORT_AFTER", 0)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def draw(run: Callable[[int], torch.Tensor], n: int) -> torch.Tensor:
    torch.manual_seed(n)
    return run(n).cpu()


def check(run: Callable[[int], torch.Tensor]) -> None:
    """Compare the numbers that a host run draws with those of the program."""
    before, sizes = lazytpu.metrics(), (37, 601)
    hosted = [draw(run, n) for n in sizes]
    after = lazytpu.metrics()
    assert [after[name] - before[name] for name in ("on_host", "compiles")] == [2, 0]
    with lazytpu.options(on_host=False):
        programs = [draw(run, n) for n in sizes]
    for got, expected in zip(hosted, programs, strict=True):
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(bits(got), bits(expected))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_have_the_bits_of_the_program(dtype: torch.dtype) -> None:
    check(lambda n: torch.rand(n, 3, dtype=dtype, device="tpu"))
    check(lambda n: torch.empty(n, 3, dtype=dtype, device="tpu").uniform_(-2.3, 7.1))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32], ids=str)
def test_integers_have_the_bits_of_the_program(dtype: torch.dtype) -> None:
    high = 2 if dtype is torch.bool else 100
    check(lambda n: torch.randint(high, (n, 3), dtype=dtype, device="tpu"))


def test_wide_ranges_have_the_bits_of_the_program() -> None:
    check(lambda n: torch.randint(-(2**62), 2**62, (n, 3), device="tpu"))
    check(lambda n: torch.empty(n, device="tpu").random_(17))


def test_a_view_is_overwritten_in_its_own_order() -> None:
    def run(n: int) -> torch.Tensor:
        base = torch.zeros(3, n, device="tpu")
        base.t()[1:].uniform_(-9, 9)
        return base

    check(run)
