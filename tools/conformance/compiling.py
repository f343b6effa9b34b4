"""Checks that the programs of an entry compile for a chip that is not present, by its own compiler.

The forward and backward programs of the smallest samples that differ in structure are recorded in a rehearsal and
compiled; nothing runs. A crash of the compiler ends the worker process, and the sweep names the op.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput

from lazytpu.engine.compiling.translate import translate
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import RehearsedProgram, rehearse_once
from lazytpu.runtime.tpu import topologies
from lazytpu.runtime.tpu.topology import smallest
from lazytpu.runtime.tpu.tpu_compiler import ALONE
from tools.conformance.checks import cotangents_of
from tools.conformance.entries import Entry
from tools.conformance.rows import CALL, CHIPS, Row
from tools.conformance.samples import Call, Placed, call_of, describe, tensors, tree_map
from tools.conformance.sweep import answer


def prepare() -> None:
    """Set the environment that libtpu reads when it is loaded, before this process starts others."""
    os.environ.update(ALONE)


def work(pipe: Connection, chip: str) -> None:
    """Run the worker process of a sweep for a chip."""
    seen: set[str] = set()
    answer(pipe, partial(compile_entry, chip=chip, seen=seen))


def compile_entry(entry: Entry, k: int, chip: str, seen: set[str]) -> Row:
    """Return the row of an entry: its check `chip` counts the programs that compile, its check CALL the errors of
    calls. `seen` are digests of programs that compiled before, which are not compiled again."""
    start = time.process_time()
    row = Row(entry.name, str(entry.dtype).removeprefix("torch."), k, entry.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in smallest_of(entry, k):
            row.samples += 1
            call = call_of(sample)
            step = partial(_forward, entry, Placed(call, "tpu"))
            if entry.differentiable:
                step = partial(_forward_and_backward, entry, Placed(call, "tpu"), sample.output_process_fn_grad)
            try:
                programs = rehearse_once(step, "tpu" if chip in CHIPS else "gpu")
            except Exception as error:  # noqa: BLE001
                if not isinstance(error, NotImplementedError) and _refused_by_cpu(entry, call):
                    row.reason = f"the CPU refuses it: {' '.join(str(error).split())[:200]}"
                else:
                    row.add(CALL, number, error, describe(call))
                continue
            for program in programs:
                row.add(chip, number, _compiled(program, chip, seen, entry.name), describe(call))
    if not row.samples:
        row.reason = "takes neither a tensor nor a device"
    row.seconds = round(time.process_time() - start, 3)
    return row


def _compiled(part: RehearsedProgram, chip: str, seen: set[str], name: str) -> Exception | None:
    """Return the error of compiling a program, or None."""
    is_tpu = chip in CHIPS
    target = Target.parse(chip if is_tpu else "gpu")
    trace = (part.records, part.live, part.dead, part.names)
    try:
        translated = translate(*trace, name=name, bounds_check=True, target=target, platform="tpu" if is_tpu else chip)
        digest = hashlib.sha256(translated.stablehlo.encode()).hexdigest()
        if is_tpu and digest not in seen:
            topologies.check_compiles(translated.module, smallest(chip), name=name)
            seen.add(digest)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _forward(entry: Entry, placed: Placed) -> Any:
    _reseed(entry)
    with torch.no_grad():
        arguments = placed.take(fresh=True)
        return entry.info.get_op()(arguments[0], *arguments[1], **arguments[2])


def _forward_and_backward(entry: Entry, placed: Placed, unique: Callable[[Any], Any]) -> Any:
    _reseed(entry)
    arguments = placed.take(grad=True)
    leaves = [x for x in tensors(arguments) if x.requires_grad]
    outputs = entry.info.gradcheck_wrapper(entry.info.get_op(), arguments[0], *arguments[1], **arguments[2])
    results = [r for r in tensors(unique(outputs)) if r.requires_grad]
    if not leaves or not results:
        return outputs
    return outputs, torch.autograd.grad(results, leaves, cotangents_of(results, entry, "tpu"), allow_unused=True)


def _refused_by_cpu(entry: Entry, call: Call) -> bool:
    try:
        _forward(entry, Placed(call, "cpu"))
    except Exception:  # noqa: BLE001
        return True
    return False


def _reseed(entry: Entry) -> None:
    torch.default_generator.manual_seed(entry.start())
    torch.get_device_module("tpu").manual_seed(entry.start())


def smallest_of(entry: Entry, k: int) -> list[tuple[int, SampleInput]]:
    """At most k samples that differ in structure, each the smallest of its kind that has elements, with their
    numbers."""
    kinds: dict[str, tuple[tuple[bool, int], int, SampleInput]] = {}
    for number, sample in entry.samples(0):
        call = call_of(sample)
        operands = tensors(call)
        if not operands and "device" not in sample.kwargs:
            continue
        size = (any(not t.numel() for t in operands), sum(t.numel() for t in operands))
        kind = structure(call)
        if kind not in kinds or size < kinds[kind][0]:
            kinds[kind] = size, number, sample
    chosen = sorted(kinds.values(), key=lambda found: found[:2])
    return [(number, sample) for _, number, sample in (chosen[:k] if k else chosen)]


def structure(call: Call) -> str:
    """Return a text that is equal for two calls with similar programs: the presence and types of arguments, and ranks
    and dtypes of tensors; no sizes, and only the signs of numbers."""

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return f"{x.dtype}{x.dim()}{x.layout}"
        if isinstance(x, int | float) and not isinstance(x, bool):
            return f"{type(x).__name__}{(x > 0) - (x < 0)}"
        return re.sub(r"\d+", "", repr(x)) if isinstance(x, torch.Size) else repr(x)

    return repr(tree_map(leaf, call))
