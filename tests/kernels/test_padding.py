"""Kernels with a padding rule: one program for many sizes, and the check of the rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import lazytpu
from lazytpu.pallas import custom_jax_kernel
from tests.kernels.pallas_kernels import softmax

SIZES = ((20, 10), (25, 10), (30, 40), (31, 33), (29, 15))
RULE = "rows columns=-inf -> rows columns"


@pytest.fixture(autouse=True)
def buckets() -> Iterator[None]:
    lazytpu.sync()
    with lazytpu.options(buckets=(48, 96), background_compile=0.0):
        yield
        lazytpu.sync()


def mean_and_total(x: Any, weights: Any, *, power: int) -> Any:
    total = (x.T @ weights) ** power
    return x - 1, total


def programs(kernel: Any) -> str:
    before = len(lazytpu.explain())
    for rows, columns in SIZES:
        x = torch.randn(rows, columns)
        y = kernel(x.to("tpu") * 2) + 1
        torch.testing.assert_close(y.sum(0).cpu(), ((x * 2).softmax(-1) + 1).sum(0), rtol=1e-4, atol=1e-4)
    return "\n".join(map(str, list(lazytpu.explain())[before:]))


def test_kernel_with_a_padding_rule_has_programs_for_buckets() -> None:
    output = programs(custom_jax_kernel(padding=RULE)(softmax))
    assert output.count("compiled because") == 3
    assert "one program for sizes n 2..48, now 30, 38 % padding; m 2..48, now 40" in output


def test_kernel_without_a_rule_is_refused() -> None:
    output = programs(custom_jax_kernel(softmax))
    assert "one program for sizes" not in output
    assert "test_padding.py" in output and "the kernel 'softmax' does not state which padding it supports" in output


def test_kernel_that_fails_at_bucket_sizes_is_refused() -> None:
    kernel = custom_jax_kernel(padding="n -> n")(lambda x: x * list(range(40))[len(x) - 1])
    for n in (20, 25):
        assert kernel(torch.ones(n).to("tpu")).sum().item() == n * (n - 1)
    assert lazytpu.explain()[-1].records == 2


def test_results_may_lack_a_size_and_operands_are_masked_separately() -> None:
    kernel = custom_jax_kernel(padding="rows=0 columns, rows=0 _ -> rows columns, columns _")(mean_and_total)
    before = len(lazytpu.explain())
    x = weights = torch.empty(0)
    for rows, columns in SIZES:
        x, weights = torch.randn(rows, columns), torch.randn(rows, 3)
        by_rows, by_columns = kernel(-x.to("tpu"), -weights.to("tpu"), power=2)
        want = torch.cat([(-x - 1).sum(0), (x.T @ weights).square().amax(1)])
        torch.testing.assert_close(torch.cat([by_rows.sum(0), by_columns.amax(1)]).cpu(), want, rtol=1e-4, atol=1e-4)
    programs_made = list(lazytpu.explain())[before:]
    assert len(programs_made) == 3 and "m 2..48" in str(programs_made[-1])
    kernel.check_padding(x.to("tpu"), weights.to("tpu"), power=2)


def test_padding_rule_is_checked() -> None:
    x = torch.randn(3, 5).to("tpu")
    custom_jax_kernel(padding=RULE)(softmax).check_padding(x)
    with pytest.raises(ValueError, match="softmax: result 0 depends on padding"):
        custom_jax_kernel(padding="rows columns -> rows columns")(softmax).check_padding(x)
    with pytest.raises(ValueError, match="result 0 depends on padding"):
        custom_jax_kernel(padding="n=0 -> _")(lambda a: jnp.mean(a)[None]).check_padding(x[0])
    with pytest.raises(ValueError, match="says nothing of padding"):
        custom_jax_kernel(softmax).check_padding(x)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("i j", "has 0 arrows"),
        ("i _=0 -> i _", "has '_=0' for a dimension"),
        ("i -> j", "has 'j' in a result, which is a size of no operand"),
        ("i -> i=0", "says what padding of a result holds"),
    ],
)
def test_malformed_rules_are_refused_at_the_decoration(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"softmax: .*{message}"):
        custom_jax_kernel(padding=rule)(softmax)


def test_rules_of_other_shapes_are_refused_at_the_call() -> None:
    x = torch.ones(2, 3, device="tpu")
    for rule, message in {"i -> i": "names 1 dimensions", "i j, i -> i j": "2 operands", "i i -> i i": "alike"}.items():
        with pytest.raises(ValueError, match=message):
            custom_jax_kernel(padding=rule)(softmax)(x)
