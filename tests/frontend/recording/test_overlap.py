"""Overlap checks: torch's own CPU kernels decide which writes are rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lazytpu.frontend.recording.overlap import (
    Internal,
    Overlap,
    check_no_internal_overlap,
    check_no_overlap,
    check_no_partial_overlap,
    internal_overlap,
    is_dense,
    overlap,
)


def arange(n: int) -> Tensor:
    return torch.arange(float(n))


WRITTEN: dict[str, Callable[[], Tensor]] = {
    "whole": lambda: arange(6),
    "transposed": lambda: arange(6).view(2, 3).t(),
    "sliced": lambda: arange(6)[::2],
    "expanded": lambda: arange(4).view(4, 1).expand(4, 3),
    "expanded from 1": lambda: arange(1).expand(1),
    "windows": lambda: arange(6).unfold(0, 3, 1),
    "channels last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "none": lambda: torch.zeros(0, 3).expand(2, 0, 3),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_internal_overlap_agrees_with_torch(name: str) -> None:
    x = WRITTEN[name]()
    code = torch.ops.aten._debug_has_internal_overlap(x)
    assert internal_overlap(x) is [Internal.NO, Internal.YES, Internal.TOO_HARD][code]
    assert is_dense(x) == torch.ops.aten.is_non_overlapping_and_dense(x)
    assert outcome(lambda: check_no_internal_overlap(x)) == outcome(lambda: WRITTEN[name]().add_(1))


PAIRS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "same": lambda x: (x, x),
    "same view": lambda x: (x[1:], x[1:]),
    "shifted": lambda x: (x[1:], x[:-1]),
    "apart": lambda x: (x[:3], x[3:6]),
    "strided": lambda x: (x[:6:2], x[1:6:2]),
    "transposed": lambda x: (x[:4].view(2, 2), x[:4].view(2, 2).t()),
    "elsewhere": lambda x: (x, x.clone()),
}


@pytest.mark.parametrize("name", PAIRS)
def test_overlap_is_torchs(name: str) -> None:
    a, b = PAIRS[name](arange(8))
    assert outcome(lambda: check_no_partial_overlap(a, b)) == outcome(lambda: torch.neg(b, out=a))


def test_kinds() -> None:
    x = arange(8)
    assert internal_overlap(x) is Internal.NO
    assert internal_overlap(x.expand(2, 8)) is Internal.YES
    assert internal_overlap(x.unfold(0, 3, 1)) is Internal.TOO_HARD
    assert overlap(x, x) is overlap(x[:4], x[:4]) is Overlap.FULL
    assert overlap(x[:4], x[2:]) is Overlap.PARTIAL
    assert overlap(x[:4], x[4:]) is overlap(x, arange(8)) is overlap(x[:0], x) is Overlap.NO
    assert overlap(x[::2], x) is Overlap.TOO_HARD
    assert overlap(x[:4], x.view(torch.int32)[2:6]) is Overlap.PARTIAL


def test_no_overlap_refuses_the_same_elements() -> None:
    x = arange(8)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        check_no_overlap(x[:4], x[:4])
    check_no_overlap(x[:4], x[4:])


def outcome(call: Callable[[], object]) -> str:
    """Return the message of the error that the call raises, if any."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


NOT_IN_PLACE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "cat": lambda x, i: torch.cat([x[:3], x[3:]], out=x),
    "gather": lambda x, i: torch.gather(x, 0, i, out=x),
    "index_select": lambda x, i: torch.index_select(x, 0, i, out=x),
    "kthvalue": lambda x, i: torch.kthvalue(x, 1, out=(x, i)),
    "masked_select": lambda x, i: torch.masked_select(x, i > 2, out=x),
    "take": lambda x, i: torch.take(x, i, out=x),
}


@pytest.mark.parametrize("device", ["cpu", "tpu"])
@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_rejected_writes_to_operands(name: str, device: str) -> None:
    x, indices = arange(6).to(device), torch.arange(6).to(device)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        NOT_IN_PLACE[name](x, indices)


FIRST: dict[str, Callable[[Tensor], object]] = {
    "no kernel for the dtype": lambda x: x[:-1].__ilshift__(x[1:]),
    "no tag": lambda x: x[:-1].gcd_(x[1:]),
    "a result that cannot be written": lambda x: x.long()[:-1].xlogy_(x.long()[1:]),
    "another shape": lambda x: x[:-1].add_(x[2:]),
    "read before": lambda x: x[:-1].ldexp_(x[1:]),
}


@pytest.mark.parametrize("name", FIRST)
def test_memory_is_checked_first(name: str) -> None:
    x = torch.arange(6.0)
    assert outcome(lambda: FIRST[name](x.to("tpu"))).split(":")[0] == outcome(lambda: FIRST[name](x)).split(":")[0]
