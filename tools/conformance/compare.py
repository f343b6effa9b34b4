"""Whether a result on the device is the CPU's: structure, dtype, shape, strides, device and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo

from tools.conformance.samples import tensors, tree_map

# (rtol, atol). Wider than `torch.testing.assert_close` has for float32 and float64: those are for two runs of one
# kernel, and here two compilers order sums and pick polynomials for exp and log as they like.
TOLERANCES = {
    torch.float64: (1e-6, 1e-8),
    torch.complex128: (1e-6, 1e-8),
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3.2e-2, 1e-2),
}
# Sums cancel: an element may be off by this share of rtol times the largest element of its tensor.
CANCELLATION = 0.1
# Gradients chain several roundings.
GRADIENTS = 5.0

# Factors that are unique only up to the sign or phase of each vector, and vectors of a null space that are not unique
# at all. Where values differ, torch's own tests of gradients transform the results; their magnitudes must agree then.
FACTORS = frozenset("linalg.svd svd linalg.eigh linalg.eig pca_lowrank svd_lowrank".split())
# Memory without defined contents.
UNINITIALISED = frozenset("empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split())


class Mismatch(AssertionError):
    """A result that is not the CPU's."""


class Different(Mismatch):
    """Of the CPU's type and shape, but of other values."""


def tolerance(info: OpInfo, dtype: torch.dtype, result: torch.dtype) -> tuple[float, float]:
    """Return the widest tolerance of the entry's dtype, the result's dtype, and torch's own for the op."""
    tolerances = [TOLERANCES[d] for d in (dtype, result) if d in TOLERANCES]
    for decorator in info.decorators:
        for inner in decorator.decorators if isinstance(decorator, DecorateInfo) else [decorator]:
            if isinstance(inner, toleranceOverride) and dtype in inner.d and result in TOLERANCES:
                tolerances.append((inner.d[dtype].rtol, inner.d[dtype].atol))
    return max((r for r, _ in tolerances), default=0.0), max((a for _, a in tolerances), default=0.0)


class Comparison:
    """Compares results of one entry; `values` is False if the CPU's results are random, so that only metadata is
    compared."""

    def __init__(self, info: OpInfo, dtype: torch.dtype, device: str, values: bool, unique: Callable[[Any], Any]):
        self.info, self.dtype, self.device, self.values, self.unique = info, dtype, device, values, unique

    def __call__(self, got: Any, want: Any, what: str, *, strides: bool = True, scale: float = 1.0) -> None:
        """Raise Mismatch with the difference, unless `got` equals `want`."""
        try:
            self._compare(got, want, what, strides, scale)
        except Different:
            if self.info.name not in FACTORS:
                raise
            pairs = zip(*(tensors(self.unique(tree_map(plain, x))) for x in (got, want)), strict=True)
            for i, (g, w) in enumerate(pairs):
                self._values(g.abs(), w.abs(), f"{what}, magnitude {i} of what is unique", 10 * scale)

    def _compare(self, got: Any, want: Any, what: str, strides: bool, scale: float) -> None:
        if isinstance(want, torch.Tensor):
            self._metadata(got, want, what, strides)
            if self.values and want.numel():
                self._values(got, want, what, scale)
        elif isinstance(want, list | tuple):
            if not isinstance(got, list | tuple) or len(got) != len(want):
                raise Mismatch(f"{what}: {type(got).__name__} of {len(tensors(got))}, expected {len(want)} results")
            for i, (g, w) in enumerate(zip(got, want, strict=True)):
                self._compare(g, w, f"{what}[{i}]", strides, scale)
        elif isinstance(want, dict):
            self._compare(list(got.values()), list(want.values()), what, strides, scale)
        elif self.values and isinstance(want, float | complex):
            self._values(torch.tensor(got), torch.tensor(want), what, scale)
        elif self.values and not isinstance(want, torch.device) and got != want:
            raise Mismatch(f"{what}: {got!r}, expected {want!r}")

    def _metadata(self, got: Any, want: torch.Tensor, what: str, strides: bool) -> None:
        if not isinstance(got, torch.Tensor):
            raise Mismatch(f"{what}: {type(got).__name__}, expected a tensor")
        if got.device.type != torch.device(self.device).type:
            raise Mismatch(f"{what}: on {got.device}, expected {self.device}")
        for name in ("dtype", "layout", "shape"):
            if getattr(got, name) != getattr(want, name):
                raise Mismatch(f"{what}: {name} {getattr(got, name)}, expected {getattr(want, name)}")
        if strides and want.layout is torch.strided and want.numel() > 1 and got.stride() != want.stride():
            raise Mismatch(f"{what}: strides {got.stride()}, expected {want.stride()}")

    def _values(self, got: torch.Tensor, want: torch.Tensor, what: str, scale: float) -> None:
        on_host, wanted = (plain(t) for t in (got, want))
        rtol, atol = tolerance(self.info, self.dtype, wanted.dtype)
        if rtol:
            magnitudes = wanted.to(torch.complex128 if wanted.is_complex() else torch.float64).abs()
            largest = magnitudes[magnitudes.isfinite()].max().item() if magnitudes.isfinite().any() else 0.0
            rtol, atol = scale * rtol, max(scale * atol, CANCELLATION * scale * rtol * largest)
        try:
            torch.testing.assert_close(on_host, wanted, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            raise Different(f"{what}: {' '.join(str(error).split())}") from None


def plain(t: Any) -> Any:
    """A tensor on the CPU, dense, with conjugation and negation done."""
    if not isinstance(t, torch.Tensor):
        return t
    t = t.detach()
    return (t.to_dense() if t.layout is not torch.strided else t).cpu().resolve_conj().resolve_neg()
