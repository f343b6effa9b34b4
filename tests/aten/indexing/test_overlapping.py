"""Writes to tensors whose elements overlap: an element that an op leaves alone overwrites no written element."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lazytpu

View = tuple[tuple[int, int], tuple[int, int], int]
# Views of 3 by 4 of the first elements of a vector: size, stride, offset. The CPU refuses most writes to the expanded.
EXPANDED: dict[str, View] = {"rows": ((3, 4), (0, 1), 0), "columns": ((3, 4), (1, 0), 1), "all": ((3, 4), (0, 0), 2)}
WINDOWS: dict[str, View] = {"by 1": ((3, 4), (1, 1), 0), "by 2": ((3, 4), (2, 1), 1), "by 2 and 3": ((3, 4), (2, 3), 0)}
MASK = [[1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]]


def mask(x: Tensor) -> Tensor:
    return torch.tensor(MASK, dtype=torch.bool, device=x.device)


def at(x: Tensor, *places: int) -> Tensor:
    return torch.tensor(places, device=x.device)


def new(x: Tensor, *shape: int) -> Tensor:
    return torch.arange(50, 50 + torch.Size(shape).numel()).view(shape).to(x)


ON_EXPANDED: dict[str, Callable[[Tensor], object]] = {
    "masked_fill_": lambda x: x.masked_fill_(mask(x), 9),
    "masked_fill_ twice": lambda x: x.masked_fill_(mask(x)[:1], 9).masked_fill_(mask(x), new(x, 1)[0]),
    "index_fill_": lambda x: x.index_fill_(0, at(x, 0, -2), 9),
    "index_fill_ of nothing": lambda x: x.index_fill_(0, at(x).long(), 9),
    "index_put_ rows": lambda x: x.index_put_((at(x, 0, 1),), new(x, 2, 4)),
    "index_put_ the same row": lambda x: x.index_put_((at(x, 1, 0, 0),), new(x, 3, 4)),
    "index_put_ elements": lambda x: x.index_put_((at(x, 2, 0, 1), at(x, 0, 3, 3)), new(x, 3)),
    "index_put_ columns": lambda x: x.__setitem__((slice(None), at(x, 2, 0)), new(x, 3, 1)),
    "index_put_ added": lambda x: x.index_put_((at(x, 0, 2, 0),), new(x, 4), accumulate=True),
    "index_put_ at a mask": lambda x: x.index_put_((mask(x),), new(x, 5)),
    "index_put_ added at a mask": lambda x: x.index_put_((mask(x),), new(x, 5), accumulate=True),
    "assignment": lambda x: x.__setitem__([0], 5),
    "assignment at a mask": lambda x: x.__setitem__(mask(x), 5),
    "tril_": lambda x: x.tril_(),
    "threshold_": lambda x: torch.threshold_(x, 2, 9),
    "foreach_zero_": lambda x: torch.ops.aten._foreach_zero_.default([x]),
    "fill_": lambda x: x.fill_(9),
    "fill_ of a tensor": lambda x: x.fill_(new(x, 1)[0]),
    "mul_": lambda x: x.mul_(2),
    "scatter_": lambda x: x.scatter_(0, at(x, 0)[None], 7),
    "masked_scatter_": lambda x: x.masked_scatter_(mask(x), new(x, 5)),
}
ON_WINDOWS: dict[str, Callable[[Tensor], object]] = {
    **{name: ON_EXPANDED[name] for name in list(ON_EXPANDED)[:14] if name != "tril_"},
    "copy_": lambda x: x.copy_(new(x, 3, 4)),
    "masked_scatter_": lambda x: x.masked_scatter_(mask(x), new(x, 5)),
    "index_add_": lambda x: x.index_add_(0, at(x, 0, 2, 0), new(x, 3, 4), alpha=2),
    "index_copy_": lambda x: x.index_copy_(1, at(x, 2, 0), new(x, 3, 2)),
    "scatter_": lambda x: x.scatter_(0, at(x, 0, 2)[None], new(x, 1, 2)),
    "scatter_ of a number": lambda x: x.scatter_(1, at(x, 0, 3)[None], 7),
    "scatter_ multiplied": lambda x: x.scatter_(0, at(x, 0, 2)[None], new(x, 1, 2), reduce="multiply"),
    "scatter_add_": lambda x: x.scatter_add_(0, at(x, 0, 2, 1)[:, None], new(x, 3, 1)),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, at(x, 0, 2)[None], new(x, 1, 2), "amin", include_self=False),
    "index_reduce_": lambda x: x.index_reduce_(0, at(x, 0, 2), new(x, 2, 4), "prod", include_self=False),
    "put_": lambda x: x.put_(at(x, 0, 5, -1, 5), new(x, 4)),
    "put_ added": lambda x: x.put_(at(x, 0, 5, -1, 5), new(x, 4), accumulate=True),
}


def outcomes(write: Callable[[Tensor], object], device: str, dtype: torch.dtype, views: list[View]) -> object:
    """Return for each view the whole memory, and the error."""
    memories: list[Tensor] = []
    errors: list[str | None] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # writing to expanded tensors is deprecated
        for size, stride, offset in views:
            memories.append(torch.arange(1, 15).to(dtype).to(device))
            try:
                write(memories[-1].as_strided(size, stride, offset))
                errors.append(None)
            except RuntimeError as refused:
                errors.append(str(refused).split(" (")[0])
    return torch.cat(memories).tolist(), errors


@pytest.mark.parametrize("name", ON_EXPANDED)
def test_writes_to_expanded_tensors(name: str) -> None:
    views = list(EXPANDED.values())
    expected = outcomes(ON_EXPANDED[name], "cpu", torch.float32, views)
    assert outcomes(ON_EXPANDED[name], "tpu", torch.float32, views) == expected


@pytest.mark.long
@pytest.mark.parametrize("name", ON_WINDOWS)
def test_writes_to_windows(name: str) -> None:
    views = list(WINDOWS.values())
    expected = outcomes(ON_WINDOWS[name], "cpu", torch.int64, views)
    assert outcomes(ON_WINDOWS[name], "tpu", torch.int64, views) == expected


@pytest.mark.parametrize("name", ["copy_", "masked_scatter_", "scatter_add_", "index_copy_", "scatter_reduce_"])
def test_writes_to_one_window(name: str) -> None:
    views = [WINDOWS["by 1"]]
    expected = outcomes(ON_WINDOWS[name], "cpu", torch.int64, views)
    assert outcomes(ON_WINDOWS[name], "tpu", torch.int64, views) == expected


@pytest.mark.parametrize("mode", ["fused", "strict", "debug"])
def test_memory_of_another_dtype(mode: str) -> None:
    def written(device: str) -> list[Tensor]:
        wide = torch.arange(1, 4, dtype=torch.float64, device=device)
        narrow = wide.view(torch.int32)[1:4].expand(2, 3)
        numbers = torch.arange(1, 4, device=device) * (1 + 2j)
        real = numbers.real.expand(2, 3)
        for x in (narrow, real):
            x.masked_fill_(torch.tensor([[True, False, True], [False, False, False]], device=device), 9)
        return [wide.cpu(), numbers.cpu()]

    with lazytpu.mode(mode), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for got, expected in zip(written("tpu"), written("cpu"), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors")
def test_index_out_of_range() -> None:
    x = torch.arange(4.0).to("tpu").expand(3, 4)
    x.index_put_((torch.tensor([7]).to("tpu"),), torch.tensor(1.0).to("tpu"))
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        x.tolist()
