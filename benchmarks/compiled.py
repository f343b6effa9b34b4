"""What a steady training step costs the host when its model is under torch.compile, beside recording and jax.jit.

    python benchmarks/compiled.py

Milliseconds of CPU per step, least of many, of a 12-layer transformer and of an MLP of 20 narrow layers. The loss and
`AdamW(fused=True)` stay eager, and the step is one program either way. Backward passes run in the thread that is
measured, and programs in others. Then, of each step:

    records           what was recorded, a compiled graph counting as one, without the optimizer's records
    program           the time of the compiled step's program on a TPU v6e, as a multiple of the recorded step's
    jax.jit           a call of a jitted function of as many arrays (parameters and both states of Adam), all donated
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import torch
from common import Row, compile_at_once, exit_with, finish, parser, smallest
from torch import Tensor, nn
from workloads import mlp, transformer

import lazytpu
from lazytpu.inspection.step.model import Model
from lazytpu.inspection.step.reading import read
from lazytpu.passes.generations import GENERATIONS

RECORDS = 12
LONGER = 1.02  # a program that torch.compile recorded may take this much longer


@dataclass
class Step:
    """Host milliseconds, records beside the optimizer's, and the estimated seconds of the program on a TPU."""

    milliseconds: float
    records: int
    seconds: float
    arrays: int


def training_step(make: Callable[[], tuple[nn.Module, Tensor]], compiled: bool, repeats: int) -> Step:
    """A step of a model, measured when it is known."""
    torch.manual_seed(0)
    model, x = make()
    model, x = model.to("tpu"), x.to("tpu")
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def records() -> int:
        lazytpu.mark_step()
        return int(lazytpu.metrics()["records"])

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(forward(x), x).backward()
        optimizer.step()
        lazytpu.mark_step()

    def timed() -> float:
        lazytpu.sync()
        start = time.thread_time()
        step()
        return time.thread_time() - start

    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(3):
            timed()
        program = lazytpu.graphs()[-1].text()
        before = records()
        step()
        of_step = records() - before
        nn.functional.mse_loss(forward(x), x).backward()
        before = records()
        optimizer.step()
        of_optimizer = records() - before
        least = smallest(timed, repeats)
    arrays = 3 * len(list(model.parameters()))
    return Step(1e3 * least, of_step - of_optimizer, Model(read(program), GENERATIONS["v6e"]).seconds, arrays)


def jitted(arrays: int, repeats: int) -> float:
    """Milliseconds of a call of a jitted function that replaces as many arrays as it takes."""
    update = jax.jit(lambda values: [v * 0.5 for v in values], donate_argnums=0)
    values = update([jnp.ones(8) for _ in range(arrays)])

    def run() -> float:
        nonlocal values
        jax.block_until_ready(values)
        start = time.thread_time()
        values = update(values)
        return time.thread_time() - start

    return 1e3 * smallest(run, repeats)


def main() -> int:
    args = parser("compiled", __doc__).parse_args()
    compile_at_once()
    repeats, layers = (2, 1) if args.quick else (30, 12)
    rows: list[Row] = []
    for name, make, limit in (
        (f"{layers}-layer transformer", lambda: transformer(layers), 9.0),
        ("MLP", mlp, 2.0),
    ):
        recorded, compiled = (training_step(make, way, repeats) for way in (False, True))
        rows += [
            Row(f"{name}: compiled", compiled.milliseconds, "ms", limit),
            Row(f"{name}: recorded op by op", recorded.milliseconds, "ms"),
            Row(f"{name}: jax.jit, {compiled.arrays:,} arrays", jitted(compiled.arrays, repeats), "ms"),
            Row(f"{name}: records", compiled.records, "", RECORDS),
            Row(f"{name}: program", compiled.seconds / recorded.seconds, "×", LONGER),
        ]
    return finish("compiled", rows, args)


if __name__ == "__main__":
    exit_with(main)
