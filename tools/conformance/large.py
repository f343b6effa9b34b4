"""Values at sizes of work: samples of an entry enlarged, with special values and in other layouts, on both devices.

No tolerance is chosen here. Where the CPU's result is exactly what it gives for float64 inputs, as for moves,
comparisons, selections, integers and bits, the device's must have the same bits (any NaN is NaN). Elsewhere its error
against that float64 result, in units in the last place (ulp) of the result's dtype, may be twice the CPU's plus two.
For float64 the CPU's error in ulp is taken to be the one that it has in float32, since both come from the same number
of roundings: then the device may be three times that plus two away from the CPU.

One difference is left open: XLA's CPU client runs programs with subnormal numbers taken for zero, which it does not let
clients choose (https://github.com/jax-ml/jax/issues/16200, https://github.com/openxla/xla/issues/22858). The CPU is set
to do the same, and numbers of float32, bfloat16 and float64 below the least normal one may be off by it.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

import lazytpu
from lazytpu.engine.cutting import on_host
from tools.conformance.arguments import resized
from tools.conformance.checks import cotangents_of
from tools.conformance.compare import FACTORS, Comparison, Different, plain
from tools.conformance.entries import Entry
from tools.conformance.padding import sample_of
from tools.conformance.rows import Row
from tools.conformance.samples import Call, call_of, describe, tensors, tree_map
from tools.conformance.sweep import answer
from tools.conformance.trial import Trial, together

ROWS = (513, 3000, 4097, 65537)
SIDES = (64, 97, 128, 251, 256)
BATCHES = (2, 3, 5, 7, 13, 16, 31, 61)
MAX_ELEMENTS = 1_100_000  # of one tensor, so that 2-D ones reach a million
MAX_SECONDS = 3.0  # of the CPU for one call
TRIED = 24  # samples of the database that are drawn from
ATTEMPTS = 8  # sizes that are tried for a sample
CHECKED = ("forward", "backward", "inplace", "out")
WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip
NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def prepare() -> None:
    """Have every trace compiled (the host's kernels are the CPU's), and the CPU flush subnormals, as XLA does."""
    on_host.BESIDE = float("inf")
    torch.set_flush_denormal(True)


def work(pipe: Connection) -> None:
    """The role of a worker process of the sweep."""
    prepare()
    answer(pipe, conduct)


def conduct(entry: Entry, k: int, device: str = "tpu", checks: Sequence[str] = CHECKED) -> Row:
    """Run the checks of k enlarged samples of an entry, fused and then strict."""
    start = time.process_time()
    row = Row(entry.name, str(entry.dtype).removeprefix("torch."), k, entry.seed, reason="no sample can be enlarged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in enlarged(entry, k, device):
            row.samples, row.reason = row.samples + 1, ""
            row.random = row.random or not trial.values
            for mode in ("fused", "strict"):
                with lazytpu.mode(mode):
                    for (_, name), error in together([(trial, name) for name in checks]).items():
                        row.add(f"{name} {mode}", trial.number, error, describe(trial.call))
    row.seconds = round(time.process_time() - start, 3)
    return row


def enlarged(entry: Entry, k: int, device: str = "tpu") -> Iterator[Trial]:
    """k trials of samples of the entry at sizes of work, drawn by its seed; fewer where the CPU refuses too many."""
    draw = random.Random(entry.start())
    samples = [(n, s) for n, s in entry.samples(TRIED) if tensors(call_of(s))]
    draw.shuffle(samples)
    for number, sample in samples:
        if k <= 0:
            return
        for attempt in range(ATTEMPTS):
            call = _sized(call_of(sample), draw)
            if call is None:
                continue
            try:
                call = _layouts(_planted(call, entry.dtype, draw, attempt), draw)
                start = time.process_time()
                trial = Trial(entry, number, sample_of(sample, call), device, draw.randrange(2))
            except Exception:  # noqa: BLE001  (whatever it is: the CPU does not take this call)
                continue
            if time.process_time() - start < MAX_SECONDS:
                trial.same = Precise(trial)
                yield trial
                k -= 1
                break


def _sized(call: Call, draw: random.Random) -> Call | None:
    """The call with some of its sizes replaced by sizes of work; None where that takes too much memory."""
    given = [t for t in tensors(call) if t.layout is torch.strided]
    sizes = list(dict.fromkeys(s for t in given for s in t.shape if s > 1))
    rank = max((t.dim() for t in given), default=0)
    draw.shuffle(sizes)
    new: dict[int, int] = {}
    for place, size in enumerate(sizes[: draw.choice((1, 1, 2, 3))]):
        first = SIDES if rank >= 3 else (*ROWS, *SIDES)
        choices = BATCHES if place and rank >= 3 else (*SIDES, *BATCHES) if place else first
        new[size] = draw.choice(choices)
    shapes = [torch.Size(new.get(s, s) for s in t.shape) for t in given]
    return resized(call, new, numbers=draw.random() < 0.3) if _largest(shapes) <= MAX_ELEMENTS else None


def _largest(shapes: Sequence[torch.Size]) -> int:
    """How many elements the largest operand or result may have: that of broadcasting, or else of an outer product."""
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
        parts = [with_values(part, kind, noise) for part in (x.detach().real, x.detach().imag)]
        return torch.complex(*parts)
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
    """The call with each tensor as it is, or transposed, with gaps, behind an offset, or expanded."""
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


class Precise(Comparison):
    """Compares a trial's results by their errors."""

    def __init__(self, trial: Trial):
        same = trial.same
        super().__init__(same.info, same.dtype, same.device, same.values, same.unique)
        self.trial, self.references = trial, dict[str, Any]()

    def __call__(self, got: Any, want: Any, what: str, *, strides: bool = True, scale: float = 1.0) -> None:
        """Raise Mismatch unless metadata are the CPU's and values as exact as the CPU's."""
        del scale
        self.values, values = False, self.values
        self._compare(got, want, what, strides, 1.0)  # metadata
        self.values = values
        if not values or self.info.name in FACTORS:
            return
        references = self.reference(what)
        pairs = list(zip(tensors(got), tensors(want), strict=True))
        for i, (g, w) in enumerate(pairs):
            reference = references[i] if references and len(references) == len(pairs) else None
            error = precise(plain(g), plain(w), reference)
            if error:
                raise Different(f"{what}{f'[{i}]' if len(pairs) > 1 else ''}: {error}")

    def reference(self, what: str) -> list[torch.Tensor] | None:
        """The CPU's results at the other precision: float64's, or for float64 float32's; None where it has none."""
        kind = "gradient" if what.startswith("gradient") else "result"
        if kind not in self.references:
            self.references[kind] = self.trial.attempt(_gradients if kind == "gradient" else _results, self.trial)
        found = self.references[kind]
        if found is None or kind == "result":
            return found
        gradient = found[int(what.split()[1])]
        return None if gradient is None else [gradient]


def precise(got: torch.Tensor, want: torch.Tensor, reference: torch.Tensor | None) -> str:
    """Whether `got` is as exact as `want`, both against a reference of another precision: "", or what is wrong."""
    if not want.numel():
        return ""
    if not want.is_floating_point() and not want.is_complex():
        return _unequal(got, want)
    if reference is None:
        return ""
    reference = torch.as_tensor(plain(reference))
    # A result of float64 from inputs of float32 is computed as the reference is: nothing says how exact it is.
    if reference.shape != want.shape or want.dtype not in (*WIDER, *NARROWER) or reference.dtype == want.dtype:
        return ""
    narrow = want.dtype in NARROWER
    low = reference if narrow else want
    high = (want if narrow else reference).to(torch.complex128 if want.is_complex() else torch.float64)
    if torch.equal(torch.nan_to_num(low.to(high.dtype)), torch.nan_to_num(high)) and bool(
        (low.isnan() == high.isnan()).all() & (low.isinf() == high.isinf()).all()
    ):
        return _unequal(got, want)
    reached = _ulps(low, high, low.dtype)
    limit = (3 if narrow else 2) * float(reached.max()) + 2
    rounded = high.to(want.dtype)
    errors = _ulps(got, high, want.dtype)
    # An element is as exact as the CPU's worst one, by ulp or, where sums cancel, by the distance itself.
    farthest = torch.where(low.isfinite() & high.isfinite(), (low.to(high.dtype) - high).abs(), 0.0).max()
    wrong = errors > limit
    scale = 3 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps if narrow else 2
    wrong &= (got.to(high.dtype) - high).abs() > scale * farthest + 2 * _spacing(high, want.dtype)
    # Where the CPU and the reference agree on a number that is not finite, or on a zero, so must the device.
    agreed = _same_bits(want, rounded) & (~want.isfinite() | (high == 0)) & _same_bits(low, high.to(low.dtype))
    wrong |= agreed & ~_same_bits(got, want)
    wrong |= ~got.isfinite() & want.isfinite() & rounded.isfinite()
    return _first(wrong, got, want, f"; {float(errors.max()):.3g} ulp, allowed {limit:.3g}", high)


def _ulps(x: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The error of each element in ulp of `dtype` at the reference; 0 where either is not finite in that dtype."""
    finite = x.isfinite() & reference.isfinite() & reference.to(dtype).isfinite()
    difference = (x.to(reference.dtype) - reference).abs()
    return torch.where(finite, difference / _spacing(reference, dtype), 0.0)


def _spacing(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of neighbouring numbers of `dtype` at each element."""
    info = torch.finfo(PARTS.get(dtype, dtype))
    least = info.tiny if dtype is torch.float16 else info.tiny / info.eps  # below the least normal number may be zero
    magnitude = torch.where(x.isfinite(), x.abs(), 1.0).clamp(min=least)
    return (torch.frexp(magnitude).exponent - 1).double().exp2() * info.eps


def _same_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return (_same_bits(x.real, y.real) & _same_bits(x.imag, y.imag)) | (x.isnan() & y.isnan())
    if not x.is_floating_point():
        return x == y
    return ((x == y) & (x.signbit() == y.signbit())) | (x.isnan() & y.isnan())


def _unequal(got: torch.Tensor, want: torch.Tensor) -> str:
    return _first(~_same_bits(got, want), got, want, ", expected to be equal")


def _first(wrong: torch.Tensor, got: torch.Tensor, want: torch.Tensor, note: str, high: Any = None) -> str:
    if not bool(wrong.any()):
        return ""
    place = int(wrong.flatten().to(torch.uint8).argmax())
    exact = "" if high is None else f", exactly {high.flatten()[place].item()!r}"
    values = f"{got.flatten()[place].item()!r}, on the CPU {want.flatten()[place].item()!r}{exact}"
    return f"{int(wrong.sum())} of {wrong.numel()} elements wrong, at {place} {values}{note}"


def _other(x: Any, change: dict[torch.dtype, torch.dtype]) -> Any:
    if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.dtype in change:
        plain = x.detach()
        if x.dtype is not torch.float16 and x.is_floating_point():
            plain = torch.where(plain.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(plain).copysign(plain), plain)
        return plain.to(change[x.dtype]).requires_grad_(x.requires_grad)
    return change.get(x, x) if isinstance(x, torch.dtype) else x


def _upcast(trial: Trial, grad: bool) -> tuple[Call, torch.dtype]:
    """The call at the other precision, and the default dtype it runs with."""
    change = NARROWER if trial.entry.dtype in NARROWER else WIDER
    taken: dict[int, Any] = {}
    call = trial.host_inputs.take(fresh=True, grad=grad)
    other = tree_map(lambda x: taken.setdefault(id(x), _other(x, change)), call)
    return other, torch.float32 if change is NARROWER else torch.float64


def _results(trial: Trial) -> list[torch.Tensor]:
    call, default = _upcast(trial, grad=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        return tensors(trial.run(call))
    finally:
        torch.set_default_dtype(before)


def _gradients(trial: Trial) -> list[torch.Tensor | None]:
    call, default = _upcast(trial, grad=True)
    info, leaves = trial.entry.info, [x for x in tensors(call) if x.requires_grad]
    trial.reseed()
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        made = info.gradcheck_wrapper(info.get_op(), call[0], *call[1], **call[2])
        results = [r for r in tensors(trial.sample.output_process_fn_grad(made)) if r.requires_grad]
        back = {v: k for k, v in (NARROWER.items() if default is torch.float32 else ())}
        drawn = [r.detach().to(back.get(r.dtype, trial.entry.dtype)) for r in results]
        cotangents = cotangents_of(drawn, trial.entry, "cpu")
        cotangents = [c.to(r.dtype) for c, r in zip(cotangents, results, strict=True)]
        return list(torch.autograd.grad(results, leaves, cotangents, allow_unused=True))
    finally:
        torch.set_default_dtype(before)


