"""`_foreach_*` and gradient scaling ops against torch's CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lazytpu.aten import registry
from lazytpu.aten.dispatch import supported
from tests.aten.deferred import check

A = torch.ops.aten
SHAPES = ((3, 5), (7,), (), (0, 2))
NUMBERS = {True: [1.5, 2, 3.0, 0.5], False: [1, 2, 3, 1]}


def every_overload() -> list[str]:
    names = torch._C._dispatch_get_all_op_names()
    return sorted(n.removeprefix("aten::") for n in names if n.startswith("aten::_foreach_") and not n.endswith("out"))


def overload(name: str) -> Any:
    packet, _, kind = name.partition(".")
    return getattr(getattr(A, packet), kind or "default")


def positive(dtype: torch.dtype, count: int = 4, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(shape, generator=generator) * 3 + 0.2).to(dtype) for shape in SHAPES[:count]]


def arguments(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """An argument for each parameter without a default: lists of tensors, lists of numbers, numbers."""
    drawn: list[Any] = []
    for i, a in enumerate(op._schema.arguments):
        kind = str(a.type)
        if kind == "List[Tensor]":
            drawn.append(positive(dtype, count, seed=i))
        elif kind == "Tensor":
            drawn.append(torch.tensor([0.5, 0.7, 2.0, 3.0]) if a.name == "scalars" else torch.tensor(2.5).to(dtype))
        elif kind == "List[number]":
            drawn.append(NUMBERS[dtype.is_floating_point][:count])
        elif kind == "number" and not a.has_default_value():
            drawn.append(1.7 if dtype.is_floating_point else 2)
    return drawn


def computed(op: Any, args: list[Any]) -> bool:
    """Whether the CPU computes the op in this dtype."""
    try:
        op(*[[t.clone() if isinstance(t, torch.Tensor) else t for t in a] if isinstance(a, list) else a for a in args])
    except (NotImplementedError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("name", every_overload())
def test_every_overload(name: str) -> None:
    op = overload(name)
    if name.startswith("_foreach_mm"):
        check(op, [torch.ones(2, 3)] * 2, [torch.arange(12.0).reshape(3, 4)] * 2)
        return
    count = 3 if "norm" in name or name.startswith("_foreach_max.") or name == "_foreach_max" else 4
    single = op._schema.is_mutable or "." not in name  # in-place and unary ops add nothing to their element op
    dtypes = (torch.float32,) if single else (torch.float32, torch.bfloat16, torch.int64)
    tried = 0
    for dtype in dtypes:
        args = arguments(op, dtype, count)
        if computed(op, args):
            check(op, *args)
            tried += 1
    assert tried


@pytest.mark.parametrize("alpha", [2, -0.5])
def test_alpha(alpha: float) -> None:
    x, y = positive(torch.float32), positive(torch.float32, seed=1)
    check(A._foreach_add.List, x, y, alpha=alpha)
    check(A._foreach_sub_.List, x, y, alpha=alpha)
    check(A._foreach_add.Tensor, x, torch.tensor(2.5), alpha=alpha)


@pytest.mark.parametrize("order", [0, 1, 2, 3, math.inf], ids=str)
def test_norms(order: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(A._foreach_norm.Scalar, positive(dtype, 3), order)
    check(A._foreach_norm.Scalar, positive(torch.bfloat16, 3), order, torch.float32)


def test_numbers_are_not_part_of_the_program() -> None:
    """Step sizes and other hyperparameters are run-time numbers in every overload that takes them."""
    rules = registry.load()
    for name in (
        "add.Scalar",
        "mul.ScalarList",
        "addcdiv.ScalarList",
        "addcdiv.Scalar",
        "lerp.Scalar",
        "div.ScalarList",
    ):
        assert rules[f"aten._foreach_{name}"].numbers
    assert not rules["aten._foreach_norm.Scalar"].numbers
    assert not rules["aten._foreach_pow.Scalar"].numbers


def test_all_overloads_are_supported() -> None:
    assert [name for name in every_overload() if not supported(overload(name))] == []


@pytest.mark.parametrize("bad", [None, math.inf, math.nan], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_unscaling_finds_infinities(bad: float | None, dtype: torch.dtype) -> None:
    grads = positive(dtype)
    if bad is not None:
        grads[1][2] = bad
    for found_inf in (0.0, 1.0):
        check(
            A._amp_foreach_non_finite_check_and_unscale_.default,
            grads,
            torch.tensor(found_inf),
            torch.tensor(0.25),
        )


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
@pytest.mark.parametrize(("scale", "tracker"), [(4.0, 0), (4.0, 1), (3e38, 1)])
def test_loss_scale(found_inf: float, scale: float, tracker: int) -> None:
    growth = torch.tensor(tracker, dtype=torch.int32)
    check(A._amp_update_scale_.default, torch.tensor(scale), growth, torch.tensor(found_inf), 2.0, 0.5, 2)
