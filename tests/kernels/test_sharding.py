"""A kernel's sharding rule: refused if malformed, and a property of the op."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.pallas import custom_jax_kernel

MALFORMED: dict[str, tuple[Any, type[Exception], str]] = {
    "no text": (3, TypeError, "sharding_rule is a text such as 'rows k, k columns -> rows columns', not 3"),
    "no arrow": ("i j, j k", ValueError, "has 0 arrows; expected operands -> results"),
    "two arrows": ("i -> j -> k", ValueError, "has 2 arrows"),
    "a number": ("i 2 -> i", ValueError, "has '2' for a dimension; expected a name"),
    "a name twice": ("i i -> i", ValueError, "names two dimensions of one array alike: 'i i'"),
}
OTHER_SHAPES = {
    "i j -> i": "names 1 dimensions of result 0, whose shape is",
    "i j, j -> i j": "is for 2 operands; there are 1",
    "i j -> j i": "divides dimensions of sizes 3 and 2 alike",
}


def double(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_rules_are_refused_at_the_decoration(name: str) -> None:
    rule, kind, message = MALFORMED[name]
    with pytest.raises(kind, match=f"double: .*{message}"):
        custom_jax_kernel(sharding_rule=rule)(double)


@pytest.mark.parametrize("rule", OTHER_SHAPES)
def test_rules_of_other_shapes_are_refused_at_the_call(rule: str) -> None:
    kernel = custom_jax_kernel(sharding_rule=rule)(double)
    with pytest.raises(ValueError, match=f"double: sharding rule '{rule}' {OTHER_SHAPES[rule]}"):
        kernel(torch.ones(2, 3, device="tpu"))


def test_rule_is_a_property_of_the_op() -> None:
    x = torch.ones(2, 3, device="tpu")
    ruled = custom_jax_kernel(sharding_rule="i  j->i j")(double)
    assert (ruled(x) + custom_jax_kernel(double)(x)).tolist() == [[4.0] * 3] * 2
    text = lazytpu.graphs()[-1].text()
    assert text.count("lazytpu.jax_call double_") == 2  # the key differs, too
    assert text.count('sharding = "i j -> i j"') == 1
