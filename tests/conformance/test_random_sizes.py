"""Random programs at varying sizes, forward and backward: every size must have the CPU's values.

Padding holds NaN; modes without padding run too. `make random-sizes` runs a thousand programs.
"""

from __future__ import annotations

import os

import pytest
import torch

import lazytpu
from tests.conformance.sized_programs import Program, Sizes

COUNT = int(os.environ.get("RANDOM_SIZES", "16"))
FIRST = int(os.environ.get("RANDOM_SIZES_FROM", "0"))
TOGETHER = 8  # programs of a test
BUCKETS = (4, 8, 16)
# The first has its exact program, the second a program of its bucket. Then: the bucket's edges, another bucket, an
# empty dim, and size 1, which broadcasts.
SIZES: tuple[Sizes, ...] = ((5, 6), (7, 8), (6, 5), (8, 7), (9, 3), (0, 6), (1, 1), (2, 0))

pytestmark = pytest.mark.filterwarnings("ignore")


def expected(program: Program, sizes: Sizes) -> list[torch.Tensor] | None:
    """Return the CPU's values, or None if it refuses these sizes."""
    try:
        return program.run(program.inputs(sizes))
    except (RuntimeError, IndexError, ValueError):
        return None


def check(program: Program, sizes: Sizes) -> None:
    want = expected(program, sizes)
    if want is None:
        return
    got = program.run([x.to("tpu") for x in program.inputs(sizes)])
    lazytpu.sync()
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"value {i} of program {program.seed} at {sizes}: {'; '.join(program.names)}"
        scale = max(1.0, w.abs().nan_to_num(0, 0, 0).max().item() if w.numel() else 0.0)
        near = {"rtol": 1e-3, "atol": 1e-4 * scale, "equal_nan": True}
        torch.testing.assert_close(g.detach().cpu(), w.detach(), **near, msg=lambda m, at=where: f"{at}\n{m}")


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, TOGETHER))
def test_values_equal_the_cpu_at_every_size(first: int) -> None:
    lazytpu.sync()
    with lazytpu.options(buckets=BUCKETS):
        for seed in range(first, min(first + TOGETHER, FIRST + COUNT)):
            program = Program.of(seed)
            for sizes in SIZES:
                check(program, sizes)


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_values_equal_the_cpu_in_modes_without_padding(mode: str) -> None:
    with lazytpu.options(buckets=BUCKETS), lazytpu.mode(mode):
        for seed in range(2):
            for sizes in SIZES[:3]:
                check(Program.of(1000 + seed), sizes)


@pytest.mark.usefixtures("fresh_traces")
def test_most_programs_serve_several_sizes() -> None:
    """The generator draws programs that can be padded."""
    before = len(lazytpu.explain())
    with lazytpu.options(buckets=BUCKETS):
        for seed in range(2000, 2006):
            for sizes in SIZES[:3]:
                check(Program.of(seed), sizes)
    explanations = [str(program) for program in list(lazytpu.explain())[before:]]
    shared = sum("one program for sizes" in text and "was not compiled" not in text for text in explanations)
    assert shared >= 4, "\n".join(explanations)
