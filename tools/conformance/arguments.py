"""Checks that an integer argument has the value of its call, and not of an earlier call: each integer of an entry's
sample takes several values, at several shapes, in successive calls of one process.

Traces that differ in integers share programs if these are sizes. An integer that chooses structure (a dimension, a
number of groups, an order) must not be mistaken for a size that it happens to equal. So the order of values and shapes
makes such a coincidence likely: the same shape with another integer first, then another shape.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

import lazytpu
from tools.conformance.checks import CHECKS
from tools.conformance.entries import Entry
from tools.conformance.padding import prepare, sample_of
from tools.conformance.rows import Row
from tools.conformance.samples import Call, call_of, describe, tensors, tree_map
from tools.conformance.sweep import answer
from tools.conformance.trial import Trial

VALUES = 5
"Values of an integer, its own among them."
SHAPES = 4
CALLS = 8
"Calls for each integer, of all pairs of a value and a shape."
TRIED = 8
"Samples that are looked at for some with an integer."


def work(pipe: Connection) -> None:
    """Run the worker process of the sweep."""
    prepare()
    answer(pipe, conduct)


def conduct(entry: Entry, k: int, device: str = "tpu") -> Row:
    """The checks "forward" and "backward" of calls whose integers vary, for at most k samples of an entry."""
    start = time.process_time()
    row = Row(entry.name, str(entry.dtype).removeprefix("torch."), k, entry.seed, reason="no integer of it can vary")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in entry.samples(TRIED):
            if k and row.samples == k:
                break
            varied = 0
            for call in varied_calls(call_of(sample), entry.seed + number):
                trial = _trial(entry, number, sample_of(sample, call), device)
                if trial is None:
                    continue
                varied += 1
                for name in ("forward", "backward"):
                    row.add(name, number, _outcome(trial, name), describe(trial.call))
            if varied:
                row.samples, row.reason = row.samples + 1, ""
    row.seconds = round(time.process_time() - start, 3)
    return row


def _trial(entry: Entry, number: int, sample: Any, device: str) -> Trial | None:
    """None for a call that the CPU refuses, or that has nothing on a device."""
    if not tensors(call_of(sample)) and "device" not in sample.kwargs:
        return None
    try:
        return Trial(entry, number, sample, device)
    except Exception:  # noqa: BLE001    (any error counts)
        return None


def _outcome(trial: Trial, name: str) -> Exception | None:
    try:
        check = CHECKS[name](trial)
        next(check, None)
        lazytpu.sync()
        next(check, None)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def varied_calls(call: Call, seed: int) -> Iterator[Call]:
    """The call with each of its integers at several values and at several shapes, in an order of this seed."""
    order = random.Random(seed)
    shapes = list(_shapes(call, order))
    for place, integer in enumerate(integers(call)):
        candidates = [v for v in (integer + 1, integer - 1, integer + 2, 0, 1, 2, 3, -1, -2) if v != integer]
        values = [integer, *order.sample(candidates, VALUES - 1)]
        remaining = [(shape, value) for shape in range(len(shapes)) for value in values][2:]
        order.shuffle(remaining)
        for shape, value in [(0, values[0]), (0, values[1]), *remaining][:CALLS]:
            yield with_integer(shapes[shape], place, value)


def _shapes(call: Call, order: random.Random) -> Iterator[Call]:
    """Yield the call, and variants in which each of its sizes differs. If an integer equals one of the sizes, it
    follows that dimension in one variant, and stays unchanged in another."""
    sizes = list(dict.fromkeys(s for t in tensors(call) if t.layout is torch.strided for s in t.shape if s > 1))
    yield call
    for number in range(1, SHAPES):
        new = {size: order.randint(max(2, size - 2), size + 5) for size in sizes}
        yield resized(call, new, numbers=number % 2 == 1)


def resized(call: Call, sizes: Mapping[int, int], numbers: bool) -> Call:
    """The call with other sizes: dimensions end earlier, or begin again."""
    taken: dict[int, torch.Tensor] = {}

    def integer(x: int) -> int:
        return sizes.get(x, x) if numbers else x

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            return taken.setdefault(id(x), _with_sizes(x, [sizes.get(s, s) for s in x.shape]))
        if isinstance(x, torch.Size):
            return torch.Size(map(integer, x))
        return integer(x) if type(x) is int else x

    return tree_map(leaf, call)


def _with_sizes(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    resized, noise = x.detach(), torch.Generator().manual_seed(sum(shape))
    for dim, size in enumerate(shape):
        resized = resized.index_select(dim, torch.arange(size) % resized.shape[dim]) if resized.shape[dim] else resized
    if resized.is_floating_point() and resized.shape != x.shape:  # all elements differ
        resized = resized * (1 - 0.1 * torch.rand(resized.shape, generator=noise)).to(resized.dtype)
    return resized.requires_grad_(x.requires_grad)


def integers(call: Call) -> list[int]:
    """Return the integers among the arguments of a call, in order, including the elements of lists."""
    values: list[int] = []

    def leaf(x: Any) -> Any:
        if type(x) is int:
            values.append(x)
        elif isinstance(x, torch.Size):
            values.extend(x)
        return x

    tree_map(leaf, call)
    return values


def with_integer(call: Call, place: int, value: int) -> Call:
    """The call with another integer at a place among `integers`."""
    count = -1

    def each(x: int) -> int:
        nonlocal count
        count += 1
        return value if count == place else x

    def leaf(x: Any) -> Any:
        if type(x) is int:
            return each(x)
        return torch.Size([each(n) for n in x]) if isinstance(x, torch.Size) else x

    return tree_map(leaf, call)
