"""Whether an integer argument is what a call says it is, and not what other calls had: each integer of a sample of an
entry takes several values, at several shapes, one call after the other in one process.

Traces that differ in integers share programs where these are sizes. An integer that chooses structure (a dimension, a
number of groups, an order) must not be taken for one, whatever it happens to be equal to, so values and shapes come in
an order that makes such a coincidence likely: the same shape with another integer first, then another shape.
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
    """What a worker process of the sweep does."""
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
    except Exception:  # noqa: BLE001  (whatever it is)
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
    for place, own in enumerate(integers(call)):
        near = [v for v in (own + 1, own - 1, own + 2, 0, 1, 2, 3, -1, -2) if v != own]
        values = [own, *order.sample(near, VALUES - 1)]
        rest = [(shape, value) for shape in range(len(shapes)) for value in values][2:]
        order.shuffle(rest)
        for shape, value in [(0, values[0]), (0, values[1]), *rest][:CALLS]:
            yield with_integer(shapes[shape], place, value)


def _shapes(call: Call, order: random.Random) -> Iterator[Call]:
    """The call, and others in which each of its sizes is another one. If an integer is one of the sizes, it is in one
    of them that of the same dimension, and in one it stays."""
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
    made, noise = x.detach(), torch.Generator().manual_seed(sum(shape))
    for dim, size in enumerate(shape):
        made = made.index_select(dim, torch.arange(size) % made.shape[dim]) if made.shape[dim] else made
    if made.is_floating_point() and made.shape != x.shape:  # no two are equal
        made = made * (1 - 0.1 * torch.rand(made.shape, generator=noise)).to(made.dtype)
    return made.requires_grad_(x.requires_grad)


def integers(call: Call) -> list[int]:
    """The integers among the arguments of a call, in order; those of lists one by one."""
    found: list[int] = []

    def leaf(x: Any) -> Any:
        if type(x) is int:
            found.append(x)
        elif isinstance(x, torch.Size):
            found.extend(x)
        return x

    tree_map(leaf, call)
    return found


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
