"""Checks that an entry needs no program for each size: its samples at three sizes, with padding that holds NaN.

One size of a sample is scaled by 2 and by 3 wherever it occurs, which must leave a valid call. The first call gets a
program of its size. The second one shows which integers are sizes. The third has to find, or create, the program of
their bucket. All are compared with the CPU. If values are random, the third is compared with the program of its size,
which must draw the same numbers.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput

import lazytpu
from lazytpu.engine.compiling.choice import Costs
from lazytpu.engine.compiling.costs import Estimator
from lazytpu.engine.cutting import on_host
from lazytpu.engine.recompiles.explanation import Made
from lazytpu.runtime.buffers import padded
from lazytpu.runtime.cache import programs
from tools.conformance.checks import CHECKS, gradients
from tools.conformance.compare import GRADIENTS, UNINITIALISED, Mismatch
from tools.conformance.entries import Entry
from tools.conformance.rows import Row
from tools.conformance.samples import Call, call_of, describe, tensors, tree_map
from tools.conformance.sweep import answer
from tools.conformance.trial import Trial

SCALES = (1, 2, 3)
ROOM = 4  # times the first size is the bound
SHRUNK = 0.1  # the most by which copies of floats may be smaller
TRIED = 12  # samples that are looked at for some with a size to scale
ONE_PROGRAM = "one program for sizes"
REFUSED = "no program for many sizes: "
QUICK: dict[str, bool | int | str] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"Half of the time of XLA:CPU: values are compared, and no time is taken."


class OfItsSize(Exception):
    """There was a program of its size. The message is why."""


def prepare() -> None:
    """Set the options of a process that runs such trials: all padding holds NaN, and every trace has a program."""
    padded.POISON = True
    on_host.BESIDE = float("inf")
    Estimator.costs = lambda *_: Costs(0.0)  # pyright: ignore[reportAttributeAccessIssue]
    programs.OPTIONS.update(QUICK)


def work(pipe: Connection) -> None:
    """Run the worker process of the sweep."""
    prepare()
    answer(pipe, conduct)


@dataclass(frozen=True)
class Scaled:
    """A sample at all scales; `bound` is the size for which programs of many sizes are compiled."""

    trials: list[Trial]
    bound: int


def conduct(entry: Entry, k: int, device: str = "tpu") -> Row:
    """The checks "forward" and "backward" of at most k samples of an entry that have a size to scale."""
    start = time.process_time()
    row = Row(entry.name, str(entry.dtype).removeprefix("torch."), k, entry.seed, reason="no size of it can be scaled")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in entry.samples(TRIED):
            if k and row.samples == k:
                break
            scaled = _scaled(entry, number, sample, device)
            if scaled is None:
                continue
            row.samples, row.reason = row.samples + 1, ""
            row.random = row.random or not scaled.trials[0].values
            for name in ("forward", "backward"):
                if name == "forward" or _differentiable(scaled.trials[-1]):
                    row.add(name, number, _outcome(scaled, name), describe(scaled.trials[0].call))
    row.seconds = round(time.process_time() - start, 3)
    return row


def _scaled(entry: Entry, number: int, sample: SampleInput, device: str) -> Scaled | None:
    """Return a sample at all scales of its first size for which the CPU accepts every call; None if there is none."""
    call = call_of(sample)
    operands = [t for t in tensors(call) if t.layout is torch.strided]
    if not all(t.numel() for t in operands):  # its programs compute nothing
        return None
    for size in dict.fromkeys(s for t in operands for s in t.shape if s > 1):
        for numbers in (False, True):
            calls = [scale(call, size, by, numbers) for by in SCALES]
            try:
                return Scaled([Trial(entry, number, sample_of(sample, c), device) for c in calls], ROOM * size)
            except Exception:  # noqa: BLE001    (any error means that the CPU does not support this call)
                continue
    return None


def scale(call: Call, size: int, by: int, numbers: bool = False) -> Call:
    """A call whose dimensions of this size are `by` times as large, by copies; with `numbers`, so are integers of this
    size among its arguments."""
    taken: dict[int, torch.Tensor] = {}

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and size in x.shape:
            if id(x) not in taken:
                taken[id(x)] = _tiled(x, size, by)
            return taken[id(x)]
        if numbers and isinstance(x, torch.Size):
            return torch.Size([by * s if s == size else s for s in x])
        return by * x if numbers and type(x) is int and x == size else x

    return tree_map(leaf, call)


def _tiled(x: torch.Tensor, size: int, by: int) -> torch.Tensor:
    tiled, random = x.detach(), torch.Generator().manual_seed(by)
    for dim in (d for d, s in enumerate(x.shape) if s == size):
        tiled = torch.cat([tiled] + [_shrunk(tiled, random) for _ in range(by - 1)], dim)
    return tiled.clone().requires_grad_(x.requires_grad)


def _shrunk(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Elements of the same sign that are somewhat smaller, so that no two are equal; integers as they are."""
    if not x.is_floating_point() and not x.is_complex():
        return x
    return x * (1 - SHRUNK * torch.rand(x.shape, generator=random)).to(x.dtype)


def sample_of(like: SampleInput, call: Call) -> SampleInput:
    """Return a sample like another one, with another call."""
    sample = SampleInput(call[0], args=call[1], kwargs=call[2])
    sample.output_process_fn_grad = like.output_process_fn_grad
    sample.broadcasts_input = like.broadcasts_input
    return sample


def _differentiable(trial: Trial) -> bool:
    """Whether the CPU has gradients of a sample."""
    if not trial.entry.differentiable:
        return False
    gradients_of_inputs = trial.attempt(gradients, trial, trial.host_inputs.take(grad=True), "cpu")
    return any(gradient is not None for gradient in gradients_of_inputs or ())


def _outcome(scaled: Scaled, name: str) -> Exception | None:
    """Return None for a sample whose third size needed no exact program, and whose values are right."""
    programs: list[Made] = []
    refused: list[str] = []
    try:
        for trial in scaled.trials:
            programs = _check(trial, name, scaled.bound)
            notes = [note for program in programs for note in program.notes]
            refused += [note.removeprefix(REFUSED) for note in notes if note.startswith(REFUSED)]
    except Exception as error:  # noqa: BLE001
        return error
    if any(ONE_PROGRAM not in str(program) or program.source == "refused" for program in programs):
        return OfItsSize(refused[-1] if refused else "its integers are no forms of the sizes")
    return None


def _check(trial: Trial, name: str, bound: int) -> list[Made]:
    """Compare with the CPU. Random results, and results that differ from the CPU also at this exact size, are compared
    with the program of this size. Return the new programs."""
    lazytpu.sync()
    before = len(lazytpu.explain())
    below = bound // ROOM - 1  # so that a program is for no size smaller than the first one
    with lazytpu.options(buckets=tuple([b for b in (below, bound, 2 * bound) if b > 1])):
        if trial.values:
            check = CHECKS[name](trial)
            next(check, None)
            lazytpu.sync()
            programs = list(lazytpu.explain())[before:]
            with contextlib.suppress(Mismatch):
                next(check, None)
                return programs
        got = _computed(trial, name)
        programs = list(lazytpu.explain())[before:]
    with lazytpu.mode("strict"):  # which has no program for many sizes, and the same random numbers
        want = _computed(trial, name)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        trial.same.values = trial.entry.info.name not in UNINITIALISED
        trial.same(g.to(trial.device), w, f"{name} {i}, unlike in the program of this size", scale=4 * GRADIENTS)
    return programs


def _computed(trial: Trial, name: str) -> list[torch.Tensor]:
    """Results, or gradients, on the host."""
    if name == "forward":
        results = tensors(trial.run(trial.device_inputs.take()))
    else:
        grads = gradients(trial, trial.device_inputs.take(grad=True), trial.device)
        results = [g for g in grads or () if g is not None]
    lazytpu.sync()
    return [(x.to_dense() if x.layout is not torch.strided else x).detach().cpu() for x in results]
