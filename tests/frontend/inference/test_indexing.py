"""Rejected calls of indexing, scattering and out=: the CPU's exception type, at the call where shapes and dtypes
decide, and at the next read where values do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

X = torch.arange(12.0).reshape(3, 4)
ONES = torch.ones(3, 4)
T = torch.tensor


def moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def refusal(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> tuple[Any, bool]:
    """Return (the type of the exception, whether the call itself raised it)."""
    args, kwargs = tuple(moved(a, device) for a in args), {k: moved(v, device) for k, v in kwargs.items()}
    called = False
    try:
        result = f(*args, **kwargs)
        called = True
        (result[0] if isinstance(result, tuple) else result).cpu()
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        return type(error), not called
    return None, False


AT_THE_CALL: list[tuple[Any, ...]] = [
    (torch.index_add, X, 0, T([0, 1]), ONES),
    (torch.index_add, X, 0, T([0.0, 1.0]), ONES[:2]),
    (torch.index_add, X, 0, T([0, 1]), ONES[:2].double()),
    (torch.index_copy, X, 0, T([0, 1], dtype=torch.int32), ONES[:2]),
    (torch.index_copy, X, 0, T([0, 1]), ONES[:2, :2]),
    (torch.index_fill, X, 0, T([0.0]), 1),
    (torch.index_fill, X, 0, T([0]), 1j),
    (torch.index_reduce, X, 0, T([0, 1]), ONES[:2], "sum"),
    (torch.index_select, X, 0, T([[0]])),
    (torch.gather, X, 0, T([0])),
    (torch.gather, X, 0, torch.zeros(1, 7, dtype=torch.int64)),
    (torch.scatter, X, 0, T([[0.0]]), ONES),
    (torch.scatter, X, 0, T([[0]]), ONES.double()),
    (torch.scatter_add, X, 0, T([[0]]), ONES[0]),
    (torch.scatter_reduce, X, 0, T([[0]]), ONES, "foo"),
    (torch.take, X, T([0.0])),
    (torch.Tensor.put_, X, T([0, 1]), T([1.0])),
    (torch.masked_scatter, X, (X > 3).byte(), X),
    (torch.masked_select, X, (X > 3).byte()),
    (torch.masked_fill, X, X > 3, T(1j)),
    (torch.select_scatter, X, ONES[0], 0, 7),
    (torch.as_strided_scatter, X, T([1.0, 2.0]), (2,), (70,)),
    (torch.as_strided_scatter, X, T([1.0, 2.0]), (2, 2), (1, 1)),
    (torch.as_strided_copy, X, (2, 2), (70, 1)),
    (torch.bucketize, X, X),
    (torch.searchsorted, X, ONES[:2]),
    (torch.searchsorted, X, 2.5),
    (torch.hash_tensor, X.to(torch.complex64)),
    (torch.histc, X.bool(), 3),
    (torch.bincount, X[0]),
    (torch.histogram, X, 0),
    (torch.ops.aten._embedding_bag.default, X, torch.zeros(1, 1, 1, dtype=torch.int64), T([0])),
    (torch.ops.aten._embedding_bag.default, X, T([0]), T([[0]])),
    (torch.ops.aten._embedding_bag_forward_only.default, X[None], T([0]), T([0])),
    (torch.ops.aten._embedding_bag_forward_only.default, X.double(), T([[0, 0], [0, 0]]), T([0, 0])),
    (torch.index_put, X, (X > 3,), torch.ones(2, dtype=torch.int64)),
    (torch.index_put, X, (T([0, 1]),), torch.ones(3, dtype=torch.int64)),
    (torch.index_put, X, (T([0, 1]),), torch.ones(7, dtype=torch.int64)),
]


@pytest.mark.parametrize("case", AT_THE_CALL, ids=lambda c: c[0].__name__)
def test_shapes_and_dtypes(case: tuple[Any, ...]) -> None:
    want = refusal(case[0], case[1:], {}, "cpu")
    assert want[0] is not None
    assert refusal(case[0], case[1:], {}, "tpu") == want


WITH_THE_READ: list[tuple[Any, ...]] = [
    (torch.gather, X, 0, torch.full((1, 4), 7)),
    (torch.scatter, X, 0, torch.full((1, 4), -9), ONES),
    (torch.index_add, X, 0, T([0, 7]), ONES[:2]),
    (torch.index_copy, X, 0, T([0, 7]), ONES[:2]),
    (torch.index_fill, X, 0, T([7]), 1.0),
    (torch.index_reduce, X, 0, T([7]), ONES[:1], "prod"),
    (torch.take, X, T([40])),
    (torch.masked_scatter, X, X > 3, T([1.0])),
    (F.embedding, T([0, 7]), X),
    (F.embedding_bag, T([0, 7]), X, T([0])),
    (F.embedding_bag, T([0, 1]), X, T([1])),
    (torch.searchsorted, X[0], X[1], T([0, 1, 2, 9])),
    (torch.histogram, T([float("nan")]), 3),
    (torch.bincount, T([-1])),
]


def test_values() -> None:
    for f, *args in WITH_THE_READ:
        kwargs = {"sorter": args.pop()} if f is torch.searchsorted else {}
        want, _ = refusal(f, tuple(args), kwargs, "cpu")
        got, _ = refusal(f, tuple(args), kwargs, "tpu")
        assert want is not None
        assert got is want, f"{f.__name__}: {got}"


@pytest.mark.parametrize("name", ["gather", "sort", "cummax", "nonzero", "all", "mm", "sum", "cumsum", "add"])
def test_results_in_tensors_of_other_dtypes(name: str) -> None:
    """Some ops write to any dtype to which the result can be cast, some only to the result's dtype, and sums to all."""
    calls: dict[str, Callable[[torch.Tensor, Any], Any]] = {
        "gather": lambda x, out: torch.gather(x, 0, x[:1].long() * 0, out=out),
        "sort": lambda x, out: torch.sort(x, out=(out, out.clone())),
        "cummax": lambda x, out: torch.cummax(x, 0, out=(out, out.clone())),
        "nonzero": lambda x, out: torch.nonzero(x, out=out),
        "all": lambda x, out: torch.all(x, 0, out=out),
        "mm": lambda x, out: torch.mm(x, x.t(), out=out),
        "sum": lambda x, out: torch.sum(x * 1.5, 0, out=out),
        "cumsum": lambda x, out: torch.cumsum(x * 1.5, 0, out=out),
        "add": lambda x, out: torch.add(x, 1, out=out),
    }
    for dtype in (torch.float64, torch.int32):
        results: list[Any] = []
        for device in ("cpu", "tpu"):
            out = torch.empty(0, dtype=dtype, device=device)
            try:
                calls[name](X.to(device), out)
                results.append(out.tolist())
            except (RuntimeError, TypeError) as error:
                results.append(type(error))
        assert results[0] == results[1]


def test_as_strided_of_views() -> None:
    """Sizes and strides refer to the memory, not to the elements of a view."""
    memory = torch.arange(24.0).reshape(4, 6)
    for device in ("cpu", "tpu"):
        view = memory.clone().to(device)[:, ::2]
        assert torch.as_strided_copy(view, (2, 2), (7, 1), 3).tolist() == [[3.0, 4.0], [10.0, 11.0]]
        result = torch.as_strided_scatter(view, torch.full((2, 2), -1.0, device=device), (2, 2), (6, 1), 2)
        assert result.stride() == (6, 2)
        assert result.tolist()[:2] == [[0.0, -1.0, 4.0], [6.0, -1.0, 10.0]]
        assert view.tolist()[0] == [0.0, 2.0, 4.0]
        result = torch.slice_scatter(view, torch.zeros(2, 3, device=device), 0, 1, 3)
        assert result.stride() == (6, 2)
        assert result.tolist() == [[0.0, 2.0, 4.0], [0.0] * 3, [0.0] * 3, [18.0, 20.0, 22.0]]


OVERLAPS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "gather into what it reads": lambda x, at: torch.gather(x, 0, at, out=x),
    "take into what it reads": lambda x, at: torch.take(x, at, out=x),
    "take into its indices": lambda x, at: torch.take(at * 2, at, out=at),
    "index_select into what it reads": lambda x, at: torch.index_select(x, 0, at, out=x),
    "masked_select into what it reads": lambda x, at: torch.masked_select(x, x > 1, out=x),
    "a sum into what it reads": lambda x, at: torch.cumsum(x, 0, out=x),
    "a sum into a part of it": lambda x, at: torch.cumsum(x[1:], 0, out=x[:-1]),
    "scatter of itself": lambda x, at: x.scatter_(0, at, x),
    "masked_scatter of itself": lambda x, at: x.masked_scatter_(x > 9, x),
    "masked_fill with an element of itself": lambda x, at: x.masked_fill_(x > 1, x[0]),
    "masked_fill of one element for many": lambda x, at: x[:1].expand(6).masked_fill_(at > 1, 2.0),
    "index_fill of one element for many": lambda x, at: x[:1].expand(6).index_fill_(0, at, 2.0),
    "index_copy to one element for many": lambda x, at: x[:1].expand(6).index_copy_(0, at, x + 1),
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps(name: str) -> None:
    results: list[Any] = []
    for device in ("cpu", "tpu"):
        x = torch.arange(6.0).to(device)
        try:
            OVERLAPS[name](x, torch.arange(6).to(device))
            results.append(x.tolist())
        except RuntimeError as error:
            results.append(str(error).split(".")[0])
    assert results[0] == results[1]


@pytest.mark.parametrize("values", [T([1, 2]), T([], dtype=torch.int64), T([1, 2, 3], dtype=torch.int64)])
def test_values_of_another_shape_and_dtype(values: torch.Tensor) -> None:
    """The shape is rejected first, also for elements that a mask selects; an index out of range is not checked."""
    for where in (X > 3, T([[1, 0]]), T([90, 1])):
        said = []
        for device in ("cpu", "tpu"):
            with pytest.raises(RuntimeError) as raised:
                X.clone().to(device)[where.to(device)] = values.to(device)
            said.append(str(raised.value))
        assert said[0] == said[1]
