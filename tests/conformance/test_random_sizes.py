"""Random programs at sizes that vary, forward and backward: the CPU's values at every size, with padding that holds
NaN, and the same where there is none. `make random-sizes` runs a thousand."""

from __future__ import annotations

import os

import pytest
import torch

import lazytpu
from tests.conformance.sized_programs import Program, Sizes

COUNT = int(os.environ.get("RANDOM_SIZES", "32"))
FIRST = int(os.environ.get("RANDOM_SIZES_FROM", "0"))
TOGETHER = 8  # programs of a test
BUCKETS = (4, 8, 16)
# The first teaches, the second has a program of its bucket; its edges; another bucket; nothing, and what broadcasts.
SIZES: tuple[Sizes, ...] = ((5, 6), (7, 8), (6, 5), (8, 7), (9, 3), (0, 6), (1, 1), (2, 0))

pytestmark = pytest.mark.filterwarnings("ignore")


def expected(program: Program, sizes: Sizes) -> list[torch.Tensor] | None:
    """What the CPU gives, None where it refuses these sizes."""
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
def test_values_at_every_size(first: int) -> None:
    lazytpu.sync()
    with lazytpu.options(buckets=BUCKETS):
        for seed in range(first, min(first + TOGETHER, FIRST + COUNT)):
            program = Program.of(seed)
            for sizes in SIZES:
                check(program, sizes)


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_modes_without_padding(mode: str) -> None:
    with lazytpu.options(buckets=BUCKETS), lazytpu.mode(mode):
        for seed in range(2):
            for sizes in SIZES[:3]:
                check(Program.of(1000 + seed), sizes)


@pytest.mark.usefixtures("fresh_traces")
def test_most_programs_are_shared_by_sizes() -> None:
    """The generator makes programs that padding is for."""
    before = len(lazytpu.explain())
    with lazytpu.options(buckets=BUCKETS):
        for seed in range(2000, 2006):
            for sizes in SIZES[:3]:
                check(Program.of(seed), sizes)
    made = [str(program) for program in list(lazytpu.explain())[before:]]
    shared = sum("one program for sizes" in text and "was not compiled" not in text for text in made)
    assert shared >= 4, "\n".join(made)
