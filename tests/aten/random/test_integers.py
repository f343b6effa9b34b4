"""Whole random numbers, permutations, samples: ranges, frequencies, streams."""

from __future__ import annotations

import pytest
import torch

from tests.aten.harness import run

A = torch.ops.aten
FROM = getattr(A.random_, "from")
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def draw(op: torch._ops.OpOverload, *args: object, outs: object = (), rng: tuple[int, int] = (7, 1)) -> torch.Tensor:
    return run(op, *args, outs=list(outs), rng=rng, numbers=True)[0]


def even(x: torch.Tensor, low: int, end: int) -> None:
    """Check that every number on [low, end) has the same frequency."""
    counts = torch.bincount(x.flatten().long() - low, minlength=end - low).double()
    assert counts.numel() == end - low
    torch.testing.assert_close(counts, torch.full_like(counts, x.numel() / (end - low)), rtol=0.12, atol=0.0)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32, torch.bfloat16], ids=str)
def test_small_ranges(dtype: torch.dtype) -> None:
    x = torch.empty(100, 200, dtype=dtype)
    low = 3 if dtype == torch.uint8 else -3
    even(draw(FROM, x, low, 12), low, 12)
    even(draw(A.random_.to, x, 10), 0, 10)


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(torch.bool, 1), (torch.uint8, 255), (torch.int8, 127), (torch.int16, 2**15 - 1), (torch.int32, 2**31 - 1)]
    + [(torch.int64, 2**63 - 1), (torch.bfloat16, 2**8), (torch.float16, 2**11), (torch.float32, 2**24)],
    ids=str,
)
def test_whole_range(dtype: torch.dtype, largest: int) -> None:
    x = draw(A.random_.default, torch.empty(100, 200, dtype=dtype)).double()
    assert x.min() >= 0
    assert x.max() <= largest
    assert x.max() >= largest * 0.999
    assert abs(x.mean() / largest - 0.5) < 0.02


def test_64_bits() -> None:
    x = torch.empty(100, 200, dtype=torch.int64)
    full_range = draw(FROM, x, -(2**63), None).double() / 2**63
    assert full_range.min() < -0.999
    assert full_range.max() > 0.999
    assert abs(full_range.mean()) < 0.02
    large_range = draw(FROM, x, -(2**62), 2**62 + 2**61)  # a range above 2^63 is not a signed number
    assert large_range.min() >= -(2**62)
    assert large_range.max() < 2**62 + 2**61
    assert abs(large_range.double().mean() / 2**60 - 1) < 0.1
    up = draw(FROM, x, 2**63 - 3, None)
    assert set((up - (2**63 - 3)).flatten().tolist()) == {0, 1, 2}


def test_randint() -> None:
    out = torch.empty(100, 200, dtype=torch.int64)
    even(draw(A.randint.default, 7, [100, 200], outs=[out]), 0, 7)
    even(draw(A.randint.low, -2, 7, [100, 200], outs=[out]), -2, 7)
    even(draw(A.randint_like.default, torch.empty(100, 200), 7, outs=[torch.empty(100, 200)]), 0, 7)
    even(draw(A.randint_like.low_dtype, out, -2, 7, outs=[out]), -2, 7)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 1000])
def test_randperm(n: int) -> None:
    out = torch.empty(n, dtype=torch.int64)
    x = draw(A.randperm.default, n, outs=[out])
    assert torch.equal(x.sort().values, torch.arange(n))
    if n == 1000:
        assert not torch.equal(x, draw(A.randperm.default, n, outs=[out], rng=(7, 2)))
        assert abs(torch.corrcoef(torch.stack([x.double(), torch.arange(1000.0).double()]))[0, 1]) < 0.15


def test_multinomial() -> None:
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 1.0, 1.0, 0.0]])
    out = torch.empty(2, 20000, dtype=torch.int64)
    x = draw(A.multinomial.default, weights, 20000, True, outs=[out])
    for row, weight in zip(x, weights, strict=True):
        torch.testing.assert_close(row.bincount(minlength=4) / 20000, weight / 4, rtol=0.1, atol=0.0)
    x = draw(A.multinomial.default, weights, 2, False, outs=[torch.empty(2, 2, dtype=torch.int64)])
    assert set(x[0].tolist()) == {1, 2}
    many = weights[:1].repeat(20000, 1)
    x = draw(A.multinomial.default, many, 1, False, outs=[torch.empty(20000, 1, dtype=torch.int64)])
    torch.testing.assert_close(x.flatten().bincount(minlength=4) / 20000, weights[0] / 4, rtol=0.1, atol=0.0)
    x = draw(A.multinomial.default, weights[1].bfloat16(), 3, False, outs=[torch.empty(3, dtype=torch.int64)])
    assert x.shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_from_the_least_integer_on_all_are_drawn(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    drawn = torch.empty(1000, dtype=dtype, device="tpu").random_(-(1 << 63), None).cpu()
    assert 400 < int((drawn < 0).sum()) < 600
    assert drawn.double().min() < -(2.0**62.5) and drawn.double().max() > 2.0**62.5
    assert torch.empty(1000, dtype=dtype, device="tpu").random_(-8, None).min().item() >= -8
