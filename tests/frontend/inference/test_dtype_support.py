"""Dtypes that the device lacks are rejected at the call, and recorded ops stay intact."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch

MAKES: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(2, dtype=torch.complex32, device="tpu"),
    "full": lambda: torch.full((2,), 1, dtype=torch.complex32, device="tpu"),
    "to": lambda: torch.zeros(2, dtype=torch.complex32).to("tpu"),
    "chalf": lambda: torch.ones(2, device="tpu").chalf(),
    "a promotion": lambda: torch.ones(2, dtype=torch.float16, device="tpu") * 1j,
    "a view": lambda: torch.view_as_complex(torch.ones(2, 2, dtype=torch.float16, device="tpu")) * 2,
    "four bits": lambda: torch.empty(2, dtype=torch.float4_e2m1fn_x2, device="tpu"),
}


@pytest.mark.parametrize("name", MAKES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_refused_at_the_call(name: str) -> None:
    before = torch.ones(2, device="tpu") + 1
    with pytest.raises(NotImplementedError, match=r"is not supported on 'tpu'; supported are torch\.float16"):
        MAKES[name]()
    assert (before + 1).tolist() == [3, 3]


def test_the_cpu_is_not_called_where_it_would_crash() -> None:
    """Its backward reads the gradient of a bag that does not exist."""
    table = torch.ones(20, 3, device="tpu", requires_grad=True)
    offsets = torch.empty(0, dtype=torch.int64, device="tpu")
    bags = torch.nn.functional.embedding_bag(torch.arange(4, device="tpu"), table, offsets, mode="sum")
    bags.sum().backward()
    assert bags.shape == (0, 3) and table.grad is not None and table.grad.sum().item() == 0


@pytest.mark.parametrize("rows", [(3,), (2, 3), (0,), ()], ids=str)
@pytest.mark.parametrize("of_bias", [torch.float32, torch.bfloat16])
def test_a_bias_of_another_precision_is_refused(rows: tuple[int, ...], of_bias: torch.dtype) -> None:
    """The CPU has kernels of bfloat16, and none of two dtypes."""
    other = torch.float32 if of_bias is torch.bfloat16 else torch.bfloat16
    for device in ("cpu", "tpu"):
        x, weight = torch.ones(*rows, 4, dtype=other, device=device), torch.ones(5, 4, dtype=other, device=device)
        with pytest.raises(RuntimeError, match="must have the same dtype"):
            torch.nn.functional.linear(x, weight, torch.ones(5, dtype=of_bias, device=device))


@pytest.mark.parametrize("shapes", [((0, 4), (5, 4)), ((3, 0), (5, 0)), ((3, 4), (0, 4)), ((2, 3, 0), (5, 0))], ids=str)
def test_empty_products_of_bool(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, weight = (torch.ones(shape, dtype=torch.bool) for shape in shapes)
    expected = torch.nn.functional.linear(x, weight)
    result = torch.nn.functional.linear(x.to("tpu"), weight.to("tpu"))
    assert result.dtype == torch.bool and torch.equal(result.cpu(), expected)


def test_products_of_bool_are_refused() -> None:
    for size in (3, 200):
        x = torch.ones(size, size, dtype=torch.bool, device="tpu")
        with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
            torch.mm(x, x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_max_pool1d_of_integers_is_refused(dtype: torch.dtype) -> None:
    """The CPU refuses them, though its pools of two and three dimensions take integers."""
    for device in ("cpu", "tpu"):
        x = torch.ones(1, 2, 12, dtype=dtype, device=device)
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.nn.functional.max_pool1d(x, 2)
        with pytest.raises(RuntimeError, match=r"kernel|stride|dilation"):
            torch.nn.functional.max_pool1d(x, 0)


OVERFLOWING: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "add": lambda x, n: torch.add(x, x, alpha=n),
    "sub": lambda x, n: torch.sub(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addmm": lambda x, n: torch.addmm(x, x, x, beta=n),
    "_foreach_add": lambda x, n: torch._foreach_add([x], [x], alpha=n)[0],
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_numbers_that_a_dtype_cannot_hold(name: str) -> None:
    """Also where an earlier call with a smaller number was recorded; `sub` converts the negated number."""
    numbers = (1, 127, -127, 128, -128, 129, 255, -256, 32767, 32768, -32769, 70000, 2**31, 1e5, 3.39e38, 1e39, inf)
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.float16, torch.float32):
        for number in numbers:
            if isinstance(number, float) and not dtype.is_floating_point:
                continue
            x = torch.full((2, 2), 2, dtype=dtype)
            expected, got = (outcome(OVERFLOWING[name], each, number) for each in (x, x.to("tpu")))
            assert got == expected, (dtype, number)


def outcome(run: Callable[[torch.Tensor, Any], torch.Tensor], x: torch.Tensor, number: float) -> Any:
    """The values, or the text of the error."""
    try:
        return run(x, number).tolist()
    except RuntimeError as error:
        return str(error).splitlines()[0]
