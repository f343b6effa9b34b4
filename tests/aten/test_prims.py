"""Prims against torch's own implementation of them on the CPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from lazytpu.aten import registry
from lazytpu.aten.prims import SAME
from tests.aten.deferred import check
from tests.aten.harness import run

P = torch.ops.prims
X = torch.tensor([[0.3, -0.7, 1.5, 2.0], [0.1, 0.9, -2.5, 0.4]])
Y = torch.tensor([[1.0, 2.0, -3.0, 0.5], [0.25, 1.0, 2.0, -1.0]])
I, J = torch.tensor([5, 3, 12, 7]), torch.tensor([1, 2, 3, 1])  # noqa: E741
C = torch.complex(X, Y)

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "bitwise_and": (I, J),
    "bitwise_not": (I,),
    "bitwise_or": (I, J),
    "bitwise_xor": (I, J),
    "gcd": (I, J),
    "shift_left": (I, J),
    "shift_right_arithmetic": (-I, J),
    "as_strided_scatter": (X, Y[:, :2], [2, 2], [4, 2], 1),
    "cat": ([X, Y], 1),
    "conj_physical": (C,),
    "fill": (X, 3.0),
    "igamma": (X.abs(), Y.abs()),
    "igammac": (X.abs(), Y.abs()),
    "rev": (X, [0, 1]),
    "where": (X > Y, X, Y),
    "zeta": (X.abs() + 1, Y.abs()),
}


@pytest.mark.parametrize("name", SAME)
def test_prims_that_are_aten_ops(name: str) -> None:
    op = getattr(P, name.split(".")[1]).default
    # torch's reference of prims.digamma takes a second argument that the op does not have
    arguments = ARGUMENTS.get(op._schema.name.removeprefix("prims::"), (X, Y)[: len(op._schema.arguments)])
    if name == "prims.digamma.default":
        expected = torch.digamma(X)
        torch.testing.assert_close(run(op, X, outs=[expected])[0], expected)
    else:
        check(op, *arguments)


OTHERS = [
    (P.cbrt, (X.abs(),), {}),
    (P.div, (X, Y), {}),
    (P.div, (C, C + 1), {}),
    (P.div, (-I, J), {}),
    (P.clone, (X,), {}),
    (P.copy_strided, (X, [1, 2]), {}),
    (P.device_put, (X, torch.device("cpu")), {}),
    (P.convert_element_type, (X, torch.int32), {}),
    (P.convert_element_type, (I, torch.bfloat16), {}),
    (P.copy_to, (I.reshape(2, 2).clone(), X[:, :2]), {}),
    (P.reshape, (X, [4, 2]), {}),
    (P.collapse, (X, 0, 1), {}),
    (P.full_like, (X, 2, torch.int64, torch.device("cpu"), False), {}),
    (P.amax, (X, [1]), {}),
    (P.amin, (X, [0, 1]), {}),
    (P.sum, (X, [0]), {}),
    (P.sum, (X.bfloat16(), [0, 1]), {}),
    (P.prod, (X, [0, 1]), {}),
    (P.var, (X, [1], 1.0), {}),
    (P.var, (X, [0, 1], 0.0), {}),
    (P.fft_r2c, (X,), {"dim": [1], "onesided": True}),
    (P.fft_c2c, (C,), {"dim": [0, 1], "forward": True}),
    (P.fft_c2r, (C,), {"dim": [1], "last_dim_size": 6}),
]


@pytest.mark.parametrize(("packet", "args", "kwargs"), OTHERS, ids=lambda v: str(v) if callable(v) else "")
def test_other_prims(packet: Any, args: Any, kwargs: Any) -> None:
    op = packet.default
    if packet is P.full_like:
        placement = dict(zip(("dtype", "device", "requires_grad"), args[2:], strict=True))
        args, kwargs = args[:2], placement
    check(op, *args, **kwargs)


PLACE = {"device": torch.device("cpu"), "requires_grad": False}


@pytest.mark.parametrize(
    ("packet", "args", "kwargs"),
    [
        (P.full, ([2, 3], 2.5), {"dtype": torch.float32}),
        (P.full, ([], 7), {"dtype": torch.int32}),
        (P.iota, (5,), {"start": -3, "step": 2, "dtype": torch.int32}),
        (P.iota, (0,), {"start": 0, "step": 1, "dtype": torch.int64}),
    ],
    ids=["full", "full 0-d", "iota", "empty iota"],
)
def test_new_tensors(packet: Any, args: Any, kwargs: Any) -> None:
    check(packet.default, *args, **kwargs, **PLACE)


def test_scalar_tensor() -> None:
    check(P.scalar_tensor.default, 2.5, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("dims", [None, [0], [1], [0, 1]])
@pytest.mark.parametrize("n", [1, 5, 8])
def test_xor_sum(n: int, dims: list[int] | None) -> None:
    """torch has no xor_sum on the CPU: Python's ^ is the reference."""
    x = torch.arange(1, 3 * n + 1).reshape(3, n) * 37 % 101
    gone = [0, 1] if dims is None else dims
    rows = x.movedim(gone, list(range(len(gone)))).flatten(0, len(gone) - 1)
    expected = torch.zeros_like(rows[0])
    for row in rows:
        expected = expected ^ row
    assert torch.equal(run(P.xor_sum.default, x, dims, outs=[expected])[0], expected)


def test_random_prims_stay_in_range_and_follow_the_stream() -> None:
    drawn = torch.empty(1000)
    options = {"dtype": torch.float32, **PLACE}
    low, high = 2.0, 5.0
    arguments = {"low": low, "high": high, "stride": [1]}
    uniform, again = (run(P.uniform.default, [1000], **arguments, **options, outs=[drawn], rng=(1, 2))[0] for _ in "ab")
    assert torch.equal(uniform, again) and uniform.min() >= low and uniform.max() < high
    (normal,) = run(P.normal.default, [1000], mean=1.0, std=2.0, **options, outs=[drawn], rng=(1, 2))
    assert abs(normal.mean() - 1) < 0.3 and abs(normal.std() - 2) < 0.3


# Prims without a rule, with the reason.
VIEWS = {"as_strided", "broadcast_in_dim", "collapse_view", "conj", "imag", "real", "split_dim", "squeeze", "transpose"}
VIEWS |= {"view_of", "view_of_dtype"}
NUMBERS = {"item", "maximum_value", "minimum_value"}  # they return a Python number
TOKENS = {"_make_token", "_sink_tokens", "make_token", "sink_tokens", "inductor_prepare_softmax"}
ELSEWHERE = {"resize", "svd"}  # changes a tensor's size; linear algebra


def test_every_prim_is_listed() -> None:
    rules = registry.load()
    inductors = vars(sys.modules.get("torch._inductor.inductor_prims", sys)).values()  # of no graph that comes here
    inductor_names = {op._schema.name.partition("::")[2] for op in inductors if isinstance(op, OpOverload)}
    names = {n for n in dir(P) if hasattr(getattr(P, n), "overloads")} - inductor_names
    without = {n for n in names if f"prims.{n}.default" not in rules}
    assert without <= VIEWS | NUMBERS | TOKENS | ELSEWHERE, without - (VIEWS | NUMBERS | TOKENS | ELSEWHERE)
