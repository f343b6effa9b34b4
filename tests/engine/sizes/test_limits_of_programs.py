"""`lazytpu.explain()` says which sizes of its bucket a program for many sizes serves, and why not all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

import lazytpu
from lazytpu.engine.recompiles.explanation import Made
from lazytpu.engine.recompiles.reasons import SERVES_MANY, SERVES_SOME

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.fixture(autouse=True)
def bucketed() -> Iterator[None]:
    with lazytpu.options(buckets="auto", on_host=False):
        yield


def explanations(step: Callable[[torch.Tensor], torch.Tensor], *lengths: int) -> list[Made]:
    """Return the explanations of the programs of a step at these lengths."""
    before = len(lazytpu.explain())
    for length in lengths:
        x = torch.arange(float(length))
        torch.testing.assert_close(step(x.to("tpu")).cpu(), step(x))
    return list(lazytpu.explain())[before:]


def place(op: str, step: Callable[..., object]) -> str:
    """Return a pattern for an op on the first line of a function."""
    return rf"`{op}` at \S*test_limits_of_programs\.py:{step.__code__.co_firstlineno + 1}"


def test_refusal_names_the_op_that_branches() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return functional.adaptive_avg_pool1d(x[None], 4).sum()

    _, *programs = explanations(step, 10, 14)
    why = "needs one size: it branches on a size: the program of the bound holds where n-4*(n)/4 == 0, not at n = 14"
    assert [program.source for program in programs] == ["refused", "compiled"]
    for program in programs:
        assert re.search(f"{place('_adaptive_avg_pool2d', step)} {re.escape(why)}", program.text)


def test_programs_at_both_sides_of_a_branch_name_it() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] + x).triu(20).sum()

    _, shared, *exact = explanations(step, 31, 37, 33, 19, 17)
    assert shared.fix == SERVES_SOME and shared.text.endswith(SERVES_SOME)
    assert any(re.search(f"it serves the sizes where n-20 >= 0 in {place('triu', step)}", n) for n in shared.notes)
    assert len(exact) == 2
    for program in exact:
        assert f"program #{shared.number} does not serve it: it serves the sizes where n-20 >= 0" in program.fix


def test_contradicted_expressions_are_noted_with_the_programs_before_and_after() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, (0, 5 if len(x) < 13 else 6))
        return padded.sin().sum(0)

    first, shared = explanations(step, 10, 12)
    assert first.fix.startswith("none needed") and shared.fix == SERVES_MANY
    (after,) = explanations(step, 11, 14)
    why = rf"{place('constant_pad_nd', step)} has 6, where earlier sizes suggested 5"
    assert shared.fix == SERVES_SOME
    assert any(re.search(rf"it does not serve all sizes of its bucket: {why}", note) for note in shared.notes)
    assert any(re.search(rf"earlier programs do not serve it: {why}", note) for note in after.notes)
