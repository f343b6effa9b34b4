"""Writing at computed indices against torch's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(shape) * 4).to(dtype)


def index(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_every_dtype_is_set(dtype: torch.dtype) -> None:
    x = values(3, 4, dtype=dtype)
    check(A.scatter.src, x, 0, torch.tensor([[2, 0, 1]]), values(2, 5, dtype=dtype))
    check(A.scatter.value, x, 1, torch.tensor([[2], [0], [1]]), 1)
    check(A.index_copy.default, x, 1, index(2, 0), values(3, 2, dtype=dtype))
    check(A.index_fill.int_Scalar, x, 1, index(2, -4), 1)
    check(A.put.default, x, index(3, -1), values(2, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_added(dtype: torch.dtype) -> None:
    x = values(3, 4, dtype=dtype)
    check(A.scatter_add.default, x, 0, torch.tensor([[2, 0, 1], [2, 2, 2]]), values(2, 5, dtype=dtype))
    check(A.index_add.default, x, 1, index(2, 2), values(3, 2, dtype=dtype))
    added = x, 1, index(2, 2), values(3, 2, dtype=dtype)
    if dtype is torch.bfloat16:  # the CPU rounds after each update, lazytpu their sum in float32
        exact = A.index_add.default(x.float(), *added[1:3], added[3].float(), alpha=2)
        got = A.index_add.default(*(t.to("tpu") if isinstance(t, torch.Tensor) else t for t in added), alpha=2)
        assert torch.equal(got.cpu(), exact.to(dtype))
    else:
        check(A.index_add.default, *added, alpha=2)
    check(A.put.default, x, index(3, 3), values(2, dtype=dtype), True)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dims_of_scatter(dim: int) -> None:
    x = values(4, 5, 6)
    torch.manual_seed(0)
    order = torch.stack([torch.stack([torch.randperm(4) for _ in range(4)]) for _ in range(4)])  # no index is repeated
    check(A.scatter.src, x, dim, order.transpose(dim, 2).contiguous(), values(4, 4, 4))
    check(A.scatter.src, values(4, 4, 4), dim, order.transpose(dim, 2).contiguous(), values(4, 4, 5))
    check(A.scatter_add.default, x, dim, order.flip(0) // 2, values(4, 4, 4))
    check(A.scatter.reduce, x, dim, order // 2, values(4, 4, 4), reduce="multiply")
    check(A.scatter.reduce, x, dim, order // 2, values(4, 4, 4), reduce="add")
    check(A.scatter.value_reduce, x, dim, order // 2, 1.5, reduce="multiply")


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_reductions(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, source = values(4, 3, dtype=dtype), values(5, 3, dtype=dtype)
    where = torch.tensor([[0, 1, 0], [0, 2, 2], [0, 1, 2], [2, 1, 2]])
    check(A.scatter_reduce.two, x, 0, where, source, reduce, include_self=include_self)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_of_complex_numbers(reduce: str, include_self: bool) -> None:
    x, source = torch.complex(values(4), values(4)), torch.complex(values(5), values(5))
    check(A.scatter_reduce.two, x, 0, index(0, 1, 0, 3, 3), source, reduce, include_self=include_self)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_slices_reduced(reduce: str, include_self: bool) -> None:
    x = values(3, 4)
    check(A.index_reduce.default, x, 1, index(0, 2, 0), values(3, 3), reduce, include_self=include_self)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_slices_reduced_in_half_precision_are_rounded_one_by_one(reduce: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    x, source, where = values(3, 4, dtype=dtype), torch.randn(20, 4).to(dtype), torch.randint(0, 3, (20,))
    for place in ((x, where, source), (x[:, 0], where, source[:, 0])):
        reduced = place[0].index_reduce(0, *place[1:], reduce)
        (result,) = run(A.index_reduce.default, place[0], 0, *place[1:], reduce, outs=[reduced])
        assert torch.equal(result, reduced)


def test_nan_in_reductions() -> None:
    x = torch.tensor([1.0, 2.0, float("nan")])
    source = torch.tensor([float("nan"), 5.0, 3.0])
    for reduce in ("amax", "amin"):
        check(A.scatter_reduce.two, x, 0, index(0, 1, 2), source, reduce)


def test_scalars_and_empty() -> None:
    zero = torch.tensor(0)
    check(A.scatter.src, torch.tensor(1.0), 0, zero, torch.tensor(5.0))
    check(A.scatter.value, torch.tensor(1.0), 0, zero, 5.0)
    check(A.scatter_add.default, torch.tensor(1.0), 0, zero, torch.tensor(5.0))
    check(A.index_add.default, torch.tensor(1.0), 0, index(0), torch.tensor(5.0))
    check(A.index_fill.int_Scalar, torch.tensor(1.0), 0, index(0), 5.0)
    check(A.index_copy.default, torch.tensor(1.0), 0, index(0), torch.tensor(5.0))
    check(A.scatter.src, values(3, 4), 0, torch.ones(0, dtype=torch.int64), values(3, 4))
    check(A.index_add.default, values(3, 4), 0, torch.ones(0, dtype=torch.int64), torch.ones(0, 4))
    check(A.put.default, values(3), torch.ones(0, dtype=torch.int64), torch.ones(0))


OF_NOTHING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fill": lambda x, index: x.index_fill(1, index, 1.0),
    "add": lambda x, index: x.index_add(1, index, x.new_ones(len(x), 1)),
    "copy": lambda x, index: x.index_copy(1, index, x.new_ones(len(x), 1)),
    "index": lambda x, index: x[:, index],
    "put": lambda x, index: A.index_put.default(x, [None, index], x.new_ones(len(x), 1)),
}


@pytest.mark.parametrize(("shape", "at"), [((0, 0), 0), ((0, 6), 9)])
def test_index_of_an_empty_slice_is_not_checked(shape: tuple[int, int], at: int) -> None:
    for name, write in OF_NOTHING.items():
        if name in ("index", "put") and 0 in shape[1:]:
            continue
        want = write(torch.zeros(shape), torch.tensor([at]))
        got = write(torch.zeros(shape, device="tpu"), torch.tensor([at], device="tpu")).cpu()
        assert got.shape == want.shape, name


def test_index_fill_by_a_tensor() -> None:
    check(A.index_fill.int_Tensor, values(3, 4), 0, index(1, -1), torch.tensor(2.5))


def test_scatter_of_fractions() -> None:
    check(A.scatter.value, values(3, 4), 0, torch.tensor([[0, 1]]), 0.3)
    check(A.index_add.default, values(3, 4), 0, index(1, 1), values(2, 4), alpha=0.3)


@pytest.mark.parametrize(
    ("op", "arguments", "message"),
    [
        (A.scatter.value, (values(3, 4), 0, torch.tensor([[3]]), 1.0), "out of bounds for dimension 0 with size 3"),
        (A.scatter_add.default, (values(3, 4), 0, torch.tensor([[-1]]), values(3, 4)), "dimension 0 with size 3"),
        (A.index_add.default, (values(3, 4), 0, index(3), values(1, 4)), "out of bounds for dimension 0 with size 3"),
        (A.index_copy.default, (values(3, 4), 0, index(3), values(1, 4)), r"index_copy_\(\): index is out of bounds"),
        (A.index_fill.int_Scalar, (values(3, 4), 0, index(-4), 1.0), "out of bounds for dimension 0 with size 3"),
        (A.put.default, (values(3), index(3), values(1)), "out of range: tried to access"),
    ],
)
def test_out_of_range(op: Any, arguments: Any, message: str) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        op(*arguments)
    with pytest.raises(IndexError, match=message):
        run(op, *arguments, outs=[arguments[0]])
