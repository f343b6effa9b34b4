"""Rules that build branches and loops, on the device: values, numbers, random draws, and checks of values (R9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.aten.registry import RULES, rule
from lazytpu.ir.types import shape_of

X = torch.tensor([0.5, 2.0, -1.0])


def _below(b: Any, x: Any, limit: Any) -> Any:
    """Return x, checked to be below a limit."""
    bound = b.broadcast_in_dim(b.scalar(limit, "f32"), shape_of(x), ())
    b.check(b.compare("LT", x, bound), "a value reached the limit", "ValueError")
    return x


def grown(b: Any, x: Any, grow: Any, limit: Any, times: int) -> Any:
    """Return x, or if `grow` is true x doubled `times` times; a value that reaches the limit is an error."""

    def doubled(b: Any) -> Any:
        return b.repeat(times, [x], lambda b, i, x: b.add(_below(b, x, limit), x))

    return b.if_(grow, doubled, lambda b: x)[0]


def doubled_while(b: Any, x: Any, limit: Any) -> Any:
    """Return x, doubled while its sum is below 10; the condition has the check."""

    def goes(b: Any, x: Any) -> Any:
        return b.compare("LT", b.reduce("add", _below(b, x, limit), (0,)), b.constant(10, "f32"))

    return b.while_([x], goes, lambda b, x: b.add(x, x))[0]


def walk(b: Any, x: Any, rng: Any) -> Any:
    """Return x plus five random steps, each drawn in its own iteration."""
    seed, offset = rng

    def step(b: Any, i: Any, x: Any) -> Any:
        bits = b.random_bits(seed, b.add(offset, b.convert(i, "ui64")), shape_of(x))
        return b.add(x, b.convert(b.binary("shift_right_logical", bits, b.constant(8, "ui32", shape_of(x))), "f32"))

    return b.repeat(5, [x], step)[0]


RULES_OF = {
    "grown(Tensor x, Tensor grow, float limit, int times) -> Tensor": (grown, {"numbers": ("limit",)}),
    "doubled_while(Tensor x, float limit) -> Tensor": (doubled_while, {"numbers": ("limit",)}),
    "walk(Tensor x) -> Tensor": (walk, {"random": True}),
}


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    library = torch.library.Library("lazytpu_regions", "DEF")
    for schema, (function, options) in RULES_OF.items():
        library.define(schema)
        name = schema.partition("(")[0]
        torch.library.register_fake(f"lazytpu_regions::{name}", lambda x, *rest: torch.empty_like(x), lib=library)
        rule(f"lazytpu_regions.{name}.default", **options)(function)
    yield torch.ops.lazytpu_regions
    for schema in RULES_OF:
        del RULES[f"lazytpu_regions.{schema.partition('(')[0]}.default"]


@pytest.fixture
def x() -> torch.Tensor:
    return X.to("tpu")


@pytest.mark.parametrize("mode", ["lazy", "strict"])
def test_values(ops: Any, x: torch.Tensor, mode: str) -> None:
    with lazytpu.mode(mode):
        true, false = torch.tensor([True, False], device="tpu")
        assert torch.equal(ops.grown(x + 1, true, 100.0, 3).cpu(), (X + 1) * 8)
        assert torch.equal(ops.grown(x + 1, false, 100.0, 3).cpu(), X + 1)
        assert torch.equal(ops.doubled_while(x, 100.0).cpu(), X * 8)
        assert torch.equal(ops.doubled_while(x * 8, 100.0).cpu(), X * 8)


def test_check_of_a_branch_that_is_not_taken_passes(ops: Any, x: torch.Tensor) -> None:
    false = torch.zeros((), dtype=torch.bool, device="tpu")
    assert torch.equal(ops.grown(x, false, 1.0, 3).cpu(), X)


@pytest.mark.parametrize(("times", "limit"), [(1, 1.9), (3, 7.0), (3, 3.0)])
def test_check_in_a_loop_covers_every_iteration(ops: Any, x: torch.Tensor, times: int, limit: float) -> None:
    """Values reach 2, 4 and 8 where they are checked; a later value that passes does not undo a failure."""
    true = torch.ones((), dtype=torch.bool, device="tpu")
    assert torch.equal(ops.grown(x, true, 100.0, times).cpu(), X * 2**times)
    with pytest.raises(ValueError, match="a value reached the limit"):
        ops.grown(x, true, limit, times).cpu()
    assert torch.equal((x + 1).cpu(), X + 1), "the device is usable"


def test_check_of_a_condition(ops: Any, x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a value reached the limit"):
        ops.doubled_while(x, 16.0).cpu()
    with pytest.raises(ValueError, match="a value reached the limit"):
        ops.doubled_while(x, 1.0).cpu()
    with lazytpu.options(bounds_check=False):
        assert torch.equal(ops.doubled_while(x + torch.ones_like(x), 1.0).cpu(), (X + 1) * 4)


def test_numbers_are_arguments_inside_regions(ops: Any, x: torch.Tensor) -> None:
    true = torch.ones((), dtype=torch.bool, device="tpu")
    for limit in (50.0, 55.0):  # the first trace creates the state, and the second finds it
        ops.grown(x, true, limit, 3).cpu()
    before = lazytpu.metrics()["misses"]
    ops.grown(x, true, 60.0, 3).cpu()
    assert lazytpu.metrics()["misses"] == before


def test_each_iteration_draws_different_numbers(ops: Any, x: torch.Tensor) -> None:
    torch.manual_seed(3)
    first, second = ops.walk(x).cpu(), ops.walk(x).cpu()
    torch.manual_seed(3)
    assert torch.equal(ops.walk(x).cpu(), first)
    assert not torch.equal(first, second)


def test_clustered_step_keeps_its_regions(ops: Any, x: torch.Tensor) -> None:
    true = torch.ones((), dtype=torch.bool, device="tpu")
    y = x
    for _ in range(20):
        y = ops.grown(torch.tanh(y), true, 100.0, 2)
    expected = X
    for _ in range(20):
        expected = torch.tanh(expected) * 4
    torch.testing.assert_close(y.cpu(), expected)
