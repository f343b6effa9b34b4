"""Values at realistic sizes: samples of an entry enlarged, with special values and in other layouts, on both devices.

No tolerance is chosen: `precision` has the rule.

One difference is allowed. XLA's CPU client runs programs with subnormal numbers flushed to zero, and clients cannot
change that (https://github.com/jax-ml/jax/issues/16200, https://github.com/openxla/xla/issues/22858). The CPU is set to
do the same, and numbers of float32, bfloat16 and float64 below the least normal one may be wrong.
"""

from __future__ import annotations

import math
import random
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

import lazytpu
from lazytpu.engine.compiling.choice import Costs
from lazytpu.engine.compiling.costs import Estimator
from lazytpu.engine.cutting import on_host
from lazytpu.runtime.buffers import padded
from tools.conformance.arguments import integers, resized
from tools.conformance.entries import Entry, table
from tools.conformance.layers import Layer, layers
from tools.conformance.padding import sample_of
from tools.conformance.precision import Precise
from tools.conformance.rows import Row
from tools.conformance.samples import Call, call_of, describe, tensors, tree_map
from tools.conformance.sweep import answer
from tools.conformance.trial import Trial, together

ROWS = (1, 513, 3000, 4097, 65537)
SIDES = (64, 97, 128, 251, 256)
BATCHES = (2, 3, 5, 7, 13, 16, 31, 61)
MAX_ELEMENTS = 1_100_000  # of one tensor, so that 2-D tensors reach a million
MAX_RESULTS = 4 * MAX_ELEMENTS  # of all results of a call, as the grids of four tensors: gradients take ten times that
MAX_MEMORY = 8 << 30  # bytes of a worker process
MAX_SECONDS = 3.0  # of the CPU's time for one call
TRIED = 24  # samples of the database that are drawn from
ATTEMPTS = 8  # sizes that are tried for a sample
CHECKED = ("forward", "backward", "inplace", "out")


def infos() -> dict[str, Any]:
    """The ops of the database and the layers of torch.nn, by name."""
    return {**table(), **layers()}


def prepare() -> None:
    """Have every trace compiled (the host's kernels are the CPU's), padding hold NaN, and the CPU flush subnormals, as
    XLA does."""
    on_host.BESIDE = float("inf")
    padded.POISON = True
    Estimator.costs = lambda *_: Costs(0.0)  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_flush_denormal(True)


def work(pipe: Connection) -> None:
    """The role of a worker process of the sweep. A call that takes more memory than MAX_MEMORY is one that the CPU
    refuses."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    prepare()
    answer(pipe, conduct, infos())


PIVOTED = ("linalg.ldl_solve", "linalg.lu_solve", "lu_solve")
"""Ops with the pivots of another op's factors. If these are for another size, the CPU's LAPACK corrupts the heap."""


def conduct(entry: Entry, k: int, device: str = "tpu", checks: Sequence[str] = CHECKED) -> Row:
    """Run the checks of k enlarged samples of an entry, fused, strict, and by programs for many sizes."""
    start = time.process_time()
    row = Row(entry.name, str(entry.dtype).removeprefix("torch."), k, entry.seed, reason="no sample can be enlarged")
    if entry.name in PIVOTED:
        row.reason = "LAPACK writes where pivots say, whatever the size"
        return row
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in enlarged(entry, k, device):
            row.samples, row.reason = row.samples + 1, ""
            row.random = row.random or not trial.values
            for mode in ("fused", "strict"):
                with lazytpu.mode(mode):
                    _check([trial], checks, mode, row)
            relatives = _relatives(trial)
            if relatives:
                size = relatives[-1][0]
                with lazytpu.options(buckets=(size // 2, size + size // 8 + 1)):
                    for _, relative in relatives:  # in order: the first ones show which integers are sizes
                        _check([relative], [name for name in checks if name in ("forward", "backward")], "sizes", row)
    row.seconds = round(time.process_time() - start, 3)
    return row


def _check(trials: Sequence[Trial], checks: Sequence[str], mode: str, row: Row) -> None:
    """Run checks of trials and note the outcomes in a row."""
    for (trial, name), error in together([(trial, name) for trial in trials for name in checks]).items():
        row.add(f"{name} {mode}", trial.number, error, describe(trial.call))
    for trial in trials:
        if isinstance(trial.same, Precise):
            row.equal, row.within = row.equal + trial.same.equal, row.within + trial.same.within
            row.unjudged += trial.same.unjudged
            trial.same.equal = trial.same.within = trial.same.unjudged = 0


def _relatives(trial: Trial) -> list[tuple[int, Trial]]:
    """Return the trial with its largest size at two thirds, five sixths, and unchanged; [] if the CPU refuses one."""
    size = max((s for t in tensors(trial.call) if t.layout is torch.strided for s in t.shape), default=0)
    if size < 8 or isinstance(trial.entry.info, Layer):  # parameters are drawn for the sizes of a constructor
        return []
    trials: list[tuple[int, Trial]] = []
    for smaller in (2 * size // 3, 5 * size // 6, size):
        call = resized(trial.call, {size: smaller}, numbers=False)
        try:
            relative = Trial(trial.entry, trial.number, sample_of(trial.sample, call), trial.device)
        except Exception:  # noqa: BLE001    (any error means that the CPU does not support this call)
            return []
        relative.same = Precise(relative)
        trials.append((smaller, relative))
    return trials


def enlarged(entry: Entry, k: int, device: str = "tpu") -> Iterator[Trial]:
    """k trials of samples of the entry at sizes of work, drawn by its seed; fewer where the CPU refuses too many."""
    draw = random.Random(entry.start())
    samples = [(n, s) for n, s in entry.samples(TRIED) if tensors(call_of(s))]
    draw.shuffle(samples)
    for number, sample in samples:
        if k <= 0:
            return
        for attempt in range(ATTEMPTS):
            try:
                call = _sized(call_of(sample), draw, layer=isinstance(entry.info, Layer))
                if call is None:
                    continue
                if isinstance(entry.info, Layer):
                    call = entry.info.with_parameters(call, entry.dtype, entry.start())
                call = _layouts(_planted(call, entry.dtype, draw, attempt), draw)
                start = time.process_time()
                trial = Trial(entry, number, sample_of(sample, call), device, draw.randrange(2))
            except Exception:  # noqa: BLE001    (any error means that the CPU does not support this call)
                continue
            results = sum(t.numel() for t in tensors(trial.reference))
            if time.process_time() - start < MAX_SECONDS and results <= MAX_RESULTS:
                trial.same = Precise(trial)
                yield trial
                k -= 1
                break


def _sized(call: Call, draw: random.Random, layer: bool = False) -> Call | None:
    """Return the call with some of its sizes replaced by realistic sizes; None if that takes too much memory.

    Half of the calls with a tensor of four dimensions have an image in it: its last two sizes come from SIDES. A
    layer's sizes are also replaced among the numbers of its constructor.
    """
    operands = [t for t in tensors(call) if t.layout is torch.strided]
    sizes = list(dict.fromkeys(s for t in operands for s in t.shape if s > 1))
    if layer:
        sizes = list(dict.fromkeys([*sizes, *(n for n in integers(call) if n > 3)]))
    rank = max((t.dim() for t in operands), default=0)
    draw.shuffle(sizes)
    new: dict[int, int] = {}
    for place, size in enumerate(sizes[: draw.choice((1, 1, 2, 3))]):
        first = SIDES if rank >= 3 else (*ROWS, *SIDES)
        choices = BATCHES if place and rank >= 3 else (*SIDES, *BATCHES) if place else first
        new[size] = draw.choice(choices)
    if rank >= 4 and draw.random() < 0.5:
        image = next(t for t in operands if t.dim() >= 4)
        new = {size: draw.choice(SIDES) for size in image.shape[-2:] if size > 1}
    shapes = [torch.Size(new.get(s, s) for s in t.shape) for t in operands]
    numbers = layer or draw.random() < 0.3
    return resized(call, new, numbers=numbers) if _largest(shapes) <= MAX_ELEMENTS else None


def _largest(shapes: Sequence[torch.Size]) -> int:
    """Return the largest number of elements of an operand or result: by broadcasting, or else by an outer product."""
    try:
        result = torch.broadcast_shapes(*shapes).numel()
    except RuntimeError:
        result = math.prod(sorted((n for shape in shapes for n in shape), reverse=True)[:2])
    return max([result, *(shape.numel() for shape in shapes)])


def _planted(call: Call, dtype: torch.dtype, draw: random.Random, attempt: int) -> Call:
    """The call with ties, special values or magnitudes of the whole range in its tensors of this dtype. The last
    attempts leave values as the database has them, for ops that refuse others."""
    kind = draw.choice(("plain", "ties", "special", "extreme")) if attempt < ATTEMPTS - 3 else "plain"
    noise = torch.Generator().manual_seed(draw.randrange(2**31))
    taken: dict[int, torch.Tensor] = {}

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.dtype != dtype or not x.numel():
            return x
        if id(x) not in taken:
            taken[id(x)] = with_values(x, kind, noise).requires_grad_(x.requires_grad)
        return taken[id(x)]

    return call if kind == "plain" else tree_map(leaf, call)


def with_values(x: torch.Tensor, kind: str, noise: torch.Generator) -> torch.Tensor:
    """x with some of its elements replaced; `kind` is "ties", "special" or "extreme"."""
    if x.is_complex():
        components = [with_values(component, kind, noise) for component in (x.detach().real, x.detach().imag)]
        return torch.complex(*components)
    x = x.detach().clone(memory_format=torch.contiguous_format)
    if x.dtype is torch.bool:
        return x
    if kind == "ties":
        return (x * 2).round() / 2 if x.is_floating_point() else x % 3
    if kind == "extreme" and x.is_floating_point():
        largest = torch.finfo(x.dtype).max / 4
        exponents = torch.rand(x.shape, generator=noise, dtype=torch.float64) * 2 - 1
        return (x.double() * largest ** (exponents * 0.9)).to(x.dtype)
    flat, values = x.view(-1), special_values(x.dtype)
    count = min(len(values), max(1, x.numel() // 50))
    places = torch.randint(x.numel(), (count,), generator=noise)
    chosen = torch.randperm(len(values), generator=noise)[:count]
    flat[places] = values[chosen]
    return x


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """NaN, infinities, zeros, subnormal and extreme numbers of a dtype."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([info.min, info.max, info.max - 1, 0, 1], dtype=dtype)
    info = torch.finfo(dtype)
    inf, nan, least = float("inf"), float("nan"), info.tiny * info.eps
    return torch.tensor([nan, inf, -inf, -0.0, 0.0, info.tiny / 2, -least, info.max, info.min, 0.5], dtype=dtype)


def _layouts(call: Call, draw: random.Random) -> Call:
    """Return the call with each tensor unchanged, or transposed, with gaps, with an offset, or expanded."""
    taken: dict[int, torch.Tensor] = {}

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.numel() < 2:
            return x
        if id(x) not in taken:
            taken[id(x)] = laid_out(x.detach(), draw.choice(LAYOUTS)).requires_grad_(x.requires_grad)
        return taken[id(x)]

    return tree_map(leaf, call)


LAYOUTS = ("contiguous", "contiguous", "transposed", "gaps", "offset", "expanded")


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor of the elements of x (for "expanded": of its first row) in another layout."""
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps":
        return torch.stack((x, torch.zeros_like(x)), -1).select(-1, 0)
    if layout == "offset":
        return torch.cat((x.new_zeros(3), x.reshape(-1)))[3:].view(x.shape)
    if layout == "expanded" and x.dim() > 1:
        return x[:1].expand(x.shape)
    return x
