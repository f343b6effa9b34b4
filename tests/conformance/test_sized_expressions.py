"""Random expressions of sizes, at every size of a bucket: the values must be the CPU's, with padding that holds NaN.

`make random-sizes` runs thousands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

import lazytpu
from tests.conformance.sized_expressions import BOUNDS, COLUMNS, Case

COUNT = int(os.environ.get("RANDOM_EXPRESSIONS", "2"))
FIRST = int(os.environ.get("RANDOM_SIZES_FROM", "0"))

pytestmark = pytest.mark.filterwarnings("ignore")


def eager(case: Case) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
    """Return the case as a function of its input, whose sizes the expression reads."""
    return lambda x: case.run(x, x.shape[0], x.shape[1] - COLUMNS)


def check(case: Case, run: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
    """Compare `run` on the device with the case on the CPU, at every size."""
    for n, m in case.sizes:
        x = case.input(n, m)
        try:
            want = case.run(x, n, m)
        except (RuntimeError, IndexError):  # such as a mean of no rows, which torch refuses
            continue
        got = [value.cpu() for value in run(x.to("tpu"))]
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            where = f"seed {case.seed}: {case.use} {case.text} at n = {n}, m = {m}, result {i}"
            torch.testing.assert_close(
                g, w, rtol=1e-3, atol=1e-3, equal_nan=True, msg=lambda text, at=where: f"{at}\n{text}"
            )


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_values_equal_the_cpu(seed: int) -> None:
    lazytpu.sync()
    with lazytpu.options(buckets=BOUNDS):
        case = Case.of(seed)
        check(case, eager(case))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_values_equal_the_cpu_in_a_compiled_graph(seed: int) -> None:
    lazytpu.sync()
    torch.compiler.reset()
    with lazytpu.options(buckets=BOUNDS):
        case = Case.of(seed)
        check(case, torch.compile(eager(case), dynamic=True))


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("(n + 1) // 8", "slice limit"),  # at 33, 36, 39 and 40 it is (n+3)/4-5, too
        ("(n * 3 + 2) // 8", "arange"),
    ],
)
def test_coincidence_at_a_few_sizes_is_not_generalized(text: str, use: str) -> None:
    sizes = [(n, 0) for n in (63, 41, 47, 55, 44, 36, 35, 37, 38, 40, 33, 34, 39)]
    lazytpu.sync()
    with lazytpu.options(buckets=BOUNDS):
        case = replace(Case.of(0), text=text, use=use, sizes=tuple(sizes), nan=False)
        check(case, eager(case))


def test_generator_draws_every_use_and_one_or_two_symbols() -> None:
    cases = [Case.of(seed) for seed in range(200)]
    assert len({case.use for case in cases}) == 9
    assert {"m" in case.text for case in cases} == {True, False}
    assert {case.nan for case in cases} == {True, False}
    assert cases[0].input(3, 2).shape == (3, COLUMNS + 2)
