"""Whether the programs of an entry compile for a chip that is not there, by its own compiler.

The forward and backward programs of the smallest samples that differ in structure are recorded in a rehearsal and
compiled; nothing runs. What the compiler does not survive ends the worker process, and the sweep names the op.
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
from lazytpu.runtime.tpu.tpu_compiler import ALONE, smallest
from tools.conformance.checks import cotangents_of
from tools.conformance.entries import Entry
from tools.conformance.rows import CALL, CHIPS, Row
from tools.conformance.samples import Call, Placed, call_of, describe, tensors, tree_map
from tools.conformance.sweep import answer


def prepare() -> None:
    """Before this process starts others: what libtpu reads of the environment when it is loaded."""
    os.environ.update(ALONE)


def work(pipe: Connection, chip: str) -> None:
    """What a worker process of a sweep for a chip does."""
    seen: set[str] = set()
    answer(pipe, partial(compile_entry, chip=chip, seen=seen))


def compile_entry(entry: Entry, k: int, chip: str, seen: set[str]) -> Row:
    """The row of an entry: its check `chip` says of its programs how many compile, its check CALL what calls raise.
    `seen` are digests of programs that compiled before, which are not compiled again."""
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
                parts = rehearse_once(step, "tpu" if chip in CHIPS else "gpu")
            except Exception as error:  # noqa: BLE001
                if not isinstance(error, NotImplementedError) and _refused_by_cpu(entry, call):
                    row.reason = f"the CPU refuses it: {' '.join(str(error).split())[:200]}"
                else:
                    row.add(CALL, number, error, describe(call))
                continue
            for part in parts:
                row.add(chip, number, _compiled(part, chip, seen, entry.name), describe(call))
    if not row.samples:
        row.reason = "takes neither a tensor nor a device"
    row.seconds = round(time.process_time() - start, 3)
    return row


def _compiled(part: RehearsedProgram, chip: str, seen: set[str], name: str) -> Exception | None:
    """What keeps a program from being compiled."""
    known = chip in CHIPS
    target = Target.parse(chip if known else "gpu")
    given = (part.records, part.live, part.dead, part.names)
    try:
        made = translate(*given, name=name, bounds_check=True, target=target, platform="tpu" if known else chip)
        digest = hashlib.sha256(made.stablehlo.encode()).hexdigest()
        if known and digest not in seen:
            topologies.check_compiles(made.module, smallest(chip), name=name)
            seen.add(digest)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _forward(entry: Entry, placed: Placed) -> Any:
    _reseed(entry)
    with torch.no_grad():
        given = placed.take(fresh=True)
        return entry.info.get_op()(given[0], *given[1], **given[2])


def _forward_and_backward(entry: Entry, placed: Placed, unique: Callable[[Any], Any]) -> Any:
    _reseed(entry)
    given = placed.take(grad=True)
    leaves = [x for x in tensors(given) if x.requires_grad]
    made = entry.info.gradcheck_wrapper(entry.info.get_op(), given[0], *given[1], **given[2])
    results = [r for r in tensors(unique(made)) if r.requires_grad]
    if not leaves or not results:
        return made
    return made, torch.autograd.grad(results, leaves, cotangents_of(results, entry, "tpu"), allow_unused=True)


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
        given = tensors(call)
        if not given and "device" not in sample.kwargs:
            continue
        size = (any(not t.numel() for t in given), sum(t.numel() for t in given))
        kind = structure(call)
        if kind not in kinds or size < kinds[kind][0]:
            kinds[kind] = size, number, sample
    chosen = sorted(kinds.values(), key=lambda found: found[:2])
    return [(number, sample) for _, number, sample in (chosen[:k] if k else chosen)]


def structure(call: Call) -> str:
    """What two calls that make alike programs have in common: which arguments there are, of what type, and ranks and
    dtypes of tensors; no sizes, and of numbers only the sign."""

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return f"{x.dtype}{x.dim()}{x.layout}"
        if isinstance(x, int | float) and not isinstance(x, bool):
            return f"{type(x).__name__}{(x > 0) - (x < 0)}"
        return re.sub(r"\d+", "", repr(x)) if isinstance(x, torch.Size) else repr(x)

    return repr(tree_map(leaf, call))
