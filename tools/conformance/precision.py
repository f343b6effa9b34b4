"""The rule of the sweep at realistic sizes: a result must be as exact as the CPU's, by a reference of higher precision.

The reference is float64's for narrower dtypes. For float64 it has a mantissa of 64 bits (`extended`), if the op is a
ufunc of numpy. Where the CPU's result is exact, as for moves, comparisons, selections, integers and bits, the device
must have the same bits (any NaN is NaN). Elsewhere the error of an element may be twice the CPU's largest among
elements of about its magnitude, plus two units in the last place (ulp) of the result's dtype.

Other ops of float64 take the same number of roundings as in float32: the CPU's error in ulp is assumed to be its
float32 error, and the device may differ from the CPU by three times that. Some kernels accumulate float32 in float64,
and large numbers overflow in float32. So the device may also differ by twice the change of the CPU's result when the
last bits of the inputs change, which every algorithm may make of a rounding.

Floats without a reference of higher precision, such as float64 results of integers, are compared with the tolerances of
the ordinary sweep and counted as `unjudged`. If all are numbers of the narrower dtype, they must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from tools.conformance import extended
from tools.conformance.checks import cotangents_of
from tools.conformance.compare import FACTORS, Comparison, Different, plain
from tools.conformance.samples import Call, tensors, tree_map

if TYPE_CHECKING:
    from tools.conformance.trial import Trial

NEAR = 1024
"Elements of about the same magnitude, whose largest error on the CPU counts for each: sums cancel at random places."
NEAR_ELEMENTWISE = 64
"""The same for functions of one or two elements, whose error comes from a polynomial."""
HALVES = (torch.float16, torch.bfloat16)
WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip
NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
SHAKEN = {torch.float64: torch.float64, torch.complex128: torch.complex128}
"""The same dtypes: the last bits of half of the elements change."""
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass
class Reference:
    """The exact result, `high + low`. Without one, the CPU's result in float32, `narrow`, and in float64 at inputs with
    other last bits, `shaken`."""

    high: torch.Tensor | None = None
    low: torch.Tensor | None = None
    narrow: torch.Tensor | None = None
    shaken: torch.Tensor | None = None

    def fits(self, want: torch.Tensor) -> bool:
        """Whether it shows the error of a result. A float64 result of float32 inputs has no reference, for example:
        the CPU computes both in float64."""
        if self.narrow is not None:
            return self.narrow.shape == want.shape and NARROWER.get(want.dtype) == self.narrow.dtype
        if self.high is None or self.high.shape != want.shape:
            return False
        return self.high.dtype == WIDER.get(want.dtype) or (self.high.dtype == want.dtype and self.low is not None)


class Precise(Comparison):
    """Compares a trial's results by their errors, and counts how many had the CPU's bits or were within the rule."""

    def __init__(self, trial: Trial):
        same = trial.same
        super().__init__(same.info, same.dtype, same.device, same.values, same.unique)
        self.trial, self.references = trial, dict[str, Any]()
        self.near = NEAR_ELEMENTWISE if isinstance(self.info, UnaryUfuncInfo | BinaryUfuncInfo) else NEAR
        self.equal = self.within = self.unjudged = 0

    def __call__(self, got: Any, want: Any, what: str, *, strides: bool = True, scale: float = 1.0) -> None:
        """Raise Mismatch unless metadata are the CPU's and values as exact as the CPU's."""
        del scale
        self.values, values = False, self.values
        try:
            self._compare(got, want, what, strides, 1.0)  # metadata
        finally:
            self.values = values
        if not values or self.info.name in FACTORS:
            return
        pairs = [(plain(g), plain(w)) for g, w in zip(tensors(got), tensors(want), strict=True)]
        for i, (g, w) in enumerate(pairs):
            if not unequal(g, w):
                self.equal += 1
                continue
            references = self.reference(what)
            reference = references[i] if references is not None and len(references) == len(pairs) else None
            place = f"{what}{f'[{i}]' if len(pairs) > 1 else ''}"
            if (reference is None or not reference.fits(w)) and not exact(w):
                self._values(g, w, place, 1.0)
                self.unjudged += 1
                continue
            error = precise(g, w, reference, self.near)
            if error:
                raise Different(f"{place}: {error}")
            self.within += 1

    def reference(self, what: str) -> list[Reference] | None:
        """References of the results of a check; None where the CPU has none."""
        kind = "gradient" if what.startswith("gradient") else "result"
        if kind not in self.references:
            self.references[kind] = self._references(kind)
        references = self.references[kind]
        if references is None or kind == "result":
            return references
        gradient = references[int(what.split()[1])]
        return None if gradient is None else [gradient]

    def _references(self, kind: str) -> list[Reference | None] | None:
        trial, function = self.trial, gradients if kind == "gradient" else results
        if trial.entry.dtype in NARROWER:
            wide = trial.attempt(extended.references, trial) if kind == "result" else None
            if wide is not None:
                return [Reference(*x) for x in wide]
            return self._narrow(function)
        if kind == "result" and trial.entry.info.name in extended.INEXACT:
            wide = trial.attempt(extended.references, trial)
            if wide is not None:
                return [Reference(x[0]) for x in wide]
        high = trial.attempt(function, trial, WIDER)
        references = high and [None if x is None else Reference(torch.as_tensor(plain(x))) for x in high]
        if references and kind == "result" and any(x.dtype in NARROWER for x in tensors(trial.reference)):
            asked = self._narrow(function)  # results of a dtype that an argument names
            if asked is not None and len(asked) == len(references):
                return [x if x and x.narrow is not None and x.narrow.dtype in WIDER else y
                        for x, y in zip(asked, references, strict=True)]  # fmt: skip
        return references

    def _narrow(self, function: Any) -> list[Reference | None] | None:
        narrow = self.trial.attempt(function, self.trial, NARROWER)
        shaken = self.trial.attempt(function, self.trial, SHAKEN)
        if not narrow:
            return None
        if shaken is None or len(shaken) != len(narrow):
            shaken = [None] * len(narrow)
        return [
            None if x is None else Reference(narrow=torch.as_tensor(plain(x)), shaken=plain(y))
            for x, y in zip(narrow, shaken, strict=True)
        ]


def exact(x: torch.Tensor) -> bool:
    """Whether a result is not of floats, or all of its numbers are of a narrower dtype, as after a move of such."""
    narrower = {torch.float64: torch.float32, torch.float32: torch.bfloat16, torch.complex128: torch.complex64}
    if not (x.is_floating_point() or x.is_complex()):
        return True
    return x.dtype in narrower and bool(same_bits(x.to(narrower[x.dtype]).to(x.dtype), x).all())


def precise(got: torch.Tensor, want: torch.Tensor, reference: Reference | None, near: int = NEAR) -> str:
    """Whether `got` is as exact as `want`: "", or the difference."""
    if not want.numel():
        return ""
    if reference is None or not (want.is_floating_point() or want.is_complex()) or not reference.fits(want):
        return unequal(got, want)
    high, low, factor = reference.high, reference.low, 2.0
    if reference.narrow is not None:
        rounded = reference.narrow.to(want.dtype)
        moved = _agree(rounded, want)
        high, reached = want, _unknown(reference, rounded, want)
    else:
        assert high is not None
        rounded = high.to(want.dtype)
        moved = _agree(want, high) and (low is None or not bool(low.any()))
        reached = _distance(want, high, low)
    if moved:
        return unequal(got, want)
    finite = got.isfinite() & want.isfinite() & high.to(want.dtype).isfinite()
    errors = torch.where(finite, _distance(got, high, low), 0.0)
    reached = torch.where(finite & reached.isfinite(), reached, 0.0).double()
    spacing = _spacing(high, want.dtype)
    limits = factor * _largest_near(reached, torch.where(finite, high.abs(), 0.0), near) + 2 * spacing
    wrong = errors > limits
    # The device must have the number that is not finite, or the sign of zero, on which CPU and reference agree.
    wrong |= _agreed(got, want, rounded)
    wrong |= ~got.isfinite() & want.isfinite() & high.to(want.dtype).isfinite()
    worst = int((errors / limits).flatten().argmax())
    error, limit = (float((x / spacing).flatten()[worst]) for x in (errors, limits))
    return _first(wrong, got, want, f"; {error:.3g} ulp at {worst}, allowed {limit:.3g}", high)


def _unknown(reference: Reference, rounded: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The assumed error of the CPU's float64 result: 1.5 times its error in float32, in ulp, where that is finite, or
    the change by the last bits of the inputs."""
    narrow, shaken = reference.narrow, reference.shaken
    assert narrow is not None
    share = 1.5 * torch.finfo(want.dtype).eps / torch.finfo(narrow.dtype).eps
    reached = torch.where(rounded.isfinite(), (rounded - want).abs() * share, 0.0)
    if shaken is not None and shaken.shape == want.shape and shaken.dtype == want.dtype:
        change = (shaken - want).abs()
        reached = torch.maximum(reached, torch.where(change.isfinite(), change, 0.0))
    return reached


def _agreed(got: torch.Tensor, want: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return where the CPU and the reference have the same non-finite number, and the device has not; or the same zero,
    and the device has the other one."""
    if want.is_complex():
        components = [torch.view_as_real(x).unbind(-1) for x in (got, want, rounded)]
        wrong = _agreed(*(p[0] for p in components)) | _agreed(*(p[1] for p in components))
        return wrong & ~(got.isnan() & want.isnan())
    return same_bits(want, rounded) & (~want.isfinite() | ((rounded == 0) & (got == 0))) & ~same_bits(got, want)


def _agree(low: torch.Tensor, high: torch.Tensor) -> bool:
    """Whether a result of lower precision equals the one of higher precision everywhere."""
    return bool(same_bits(low.to(high.dtype), high).all())


def _distance(x: torch.Tensor, high: torch.Tensor, low: torch.Tensor | None) -> torch.Tensor:
    difference = x.to(high.dtype) - high
    return (difference if low is None else difference - low).abs()


def _largest_near(errors: torch.Tensor, magnitudes: torch.Tensor, near: int) -> torch.Tensor:
    """Return for each element the largest error among the `near` elements closest in magnitude."""
    order = magnitudes.flatten().argsort()
    ranked = errors.flatten()[order]
    half = min(near // 2, ranked.numel() - 1)
    padded = torch.nn.functional.pad(ranked, (half, half))
    return torch.empty_like(ranked).index_copy_(0, order, _window_maxima(padded, 2 * half + 1)).view(errors.shape)


def _window_maxima(x: torch.Tensor, width: int) -> torch.Tensor:
    """The maxima of all windows of x, by doubling."""
    count, reach = x.numel() - width + 1, 1
    while 2 * reach <= width:
        x, reach = torch.maximum(x[:-reach], x[reach:]), 2 * reach
    return torch.maximum(x[:count], x[width - reach : width - reach + count])


def _spacing(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of neighbouring numbers of `dtype` at each element."""
    info = torch.finfo(PARTS.get(dtype, dtype))
    least = info.tiny if dtype is torch.float16 else info.tiny / info.eps  # below the least normal number may be zero
    magnitude = torch.where(x.isfinite(), x.abs(), 1.0).clamp(min=least)
    return (torch.frexp(magnitude).exponent - 1).double().exp2() * info.eps


def same_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where two tensors have the same numbers, signs of zeros included; any NaN is NaN."""
    if x.is_complex():
        return (same_bits(x.real, y.real) & same_bits(x.imag, y.imag)) | (x.isnan() & y.isnan())
    if not x.is_floating_point():
        return x == y
    return ((x == y) & (x.signbit() == y.signbit())) | (x.isnan() & y.isnan())


def unequal(got: torch.Tensor, want: torch.Tensor) -> str:
    """Where two tensors have other bits: "", or the difference."""
    return _first(~same_bits(got, want), got, want, ", expected to be equal")


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
        if change is SHAKEN:
            noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5
            return torch.where(noise, plain, plain * (1 - torch.finfo(x.dtype).eps)).requires_grad_(x.requires_grad)
        if x.dtype is not torch.float16 and x.is_floating_point():
            plain = torch.where(plain.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(plain).copysign(plain), plain)
        return plain.to(change[x.dtype]).requires_grad_(x.requires_grad)
    return change.get(x, x) if isinstance(x, torch.dtype) else x


def other_precision(trial: Trial, change: dict[torch.dtype, torch.dtype], grad: bool) -> Call:
    """A trial's call on the CPU with floats of other dtypes."""
    taken: dict[int, Any] = {}
    call = trial.host_inputs.take(fresh=True, grad=grad)
    return tree_map(lambda x: taken.setdefault(id(x), _other(x, change)), call)


class _Default:
    """The default dtype, while a call runs at another precision."""

    def __init__(self, change: dict[torch.dtype, torch.dtype]):
        self.default = torch.float64 if change is WIDER else torch.float32

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.default)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self.before)


def results(trial: Trial, change: dict[torch.dtype, torch.dtype]) -> list[torch.Tensor]:
    """The CPU's results at another precision."""
    call = other_precision(trial, change, grad=False)
    with _Default(change):
        return tensors(trial.run(call))


def gradients(trial: Trial, change: dict[torch.dtype, torch.dtype]) -> list[torch.Tensor | None]:
    """The CPU's gradients at another precision, at the cotangents that the trial has."""
    call = other_precision(trial, change, grad=True)
    info, leaves = trial.entry.info, [x for x in tensors(call) if x.requires_grad]
    trial.reseed()
    process = trial.sample.output_process_fn_grad
    with _Default(change):
        results = info.gradcheck_wrapper(info.get_op(), call[0], *call[1], **call[2])
        pairs = zip(tensors(process(results)), tensors(process(trial.reference)), strict=True)
        pairs = [(r, at.dtype) for r, at in pairs if r.requires_grad]
        cotangents = cotangents_of([r.detach().to(dtype) for r, dtype in pairs], trial.entry, "cpu")
        cotangents = [c.to(r.dtype) for c, (r, _) in zip(cotangents, pairs, strict=True)]
        return list(torch.autograd.grad([r for r, _ in pairs], leaves, cotangents, allow_unused=True))
