"""For each template, a torch call that uses it and whose result does not depend on the device.

Results that are not unique, such as eigenvectors, are multiplied to products that are unique. Random ones are reduced
to a mean near a known value. The keys are the names of the templates (`lazytpu.lowering.templates`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

aten = torch.ops.aten
special: Any = torch.special
linalg: Any = torch.linalg


class Given:
    """Operands on a device, the same on every device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def normal(self, *shape: int) -> torch.Tensor:
        """Normal numbers, f32."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(self.device)

    def positive(self, *shape: int) -> torch.Tensor:
        """Numbers from 0.1 to 0.9."""
        return self.normal(*shape).sigmoid() * 0.8 + 0.1

    def table(self, *numbers: Any) -> torch.Tensor:
        """These numbers."""
        return torch.tensor(numbers).to(self.device)

    def definite(self, size: int) -> torch.Tensor:
        """A symmetric matrix with positive eigenvalues, all different."""
        a = self.normal(size, size)
        return a @ a.mT / size + torch.diag(torch.arange(1.0, size + 1)).to(self.device)


Sample: TypeAlias = Callable[[Given], Any]


def _gradient(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of the operands, with weights that depend on the position in the result."""
    leaves = [x.requires_grad_() for x in operands]
    result = function(*leaves)
    weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape).to(result.device)
    return torch.autograd.grad(result, leaves, weights)


def _together(*factors: torch.Tensor) -> torch.Tensor:
    return linalg.multi_dot(factors)


def _svd(of: Given) -> Any:
    u, s, vh = linalg.svd(of.normal(6, 4), full_matrices=False)
    return _together(u, torch.diag(s), vh), s


def _eigh(of: Given) -> Any:
    values, vectors = linalg.eigh(of.definite(5))
    return values, _together(vectors, torch.diag(values), vectors.mT)


def _eig(of: Given) -> Any:
    a = of.definite(4)
    values, vectors = linalg.eig(a)
    return (a.to(vectors.dtype) @ vectors - vectors * values).abs(), values.real.sort().values


def _qr(of: Given) -> Any:
    q, r = linalg.qr(of.normal(6, 4))
    return q @ r, r.abs()


def _lu(of: Given) -> Any:
    return linalg.lu(of.normal(5, 5))


def _solved(of: Given) -> Any:
    return linalg.solve(of.definite(5), of.normal(5, 2))


def _geqrf(of: Given) -> Any:
    factors, tau = torch.geqrf(of.normal(6, 4))
    return factors.triu().abs(), linalg.householder_product(factors, tau).abs()


def _ldl(of: Given) -> Any:
    return linalg.ldl_factor(of.definite(4))[0]


def _ldl_solve(of: Given) -> Any:
    factors, pivots = linalg.ldl_factor(of.definite(4))
    return linalg.ldl_solve(factors, pivots, of.normal(4, 2))


def _recompute(of: Given) -> Any:
    return _gradient(lambda x: checkpoint(torch.tanh, x.cos(), use_reentrant=False).exp(), of.normal(6, 6))


def _ctc(of: Given) -> torch.Tensor:
    return F.ctc_loss(of.normal(6, 2, 5).log_softmax(2), of.table([1, 2, 3], [2, 2, 4]), of.table(6, 6), of.table(3, 2))


def _ctc_backward(of: Given) -> Any:
    targets = of.table([1, 2, 3], [2, 2, 4])
    lengths = of.table(6, 6), of.table(3, 2)
    return _gradient(lambda x: F.ctc_loss(x.log_softmax(2), targets, *lengths), of.normal(6, 2, 5))


def _near(draw: Callable[[Given], torch.Tensor], mean: float, tolerance: float) -> Sample:
    """Whether the mean of random numbers is near `mean`."""
    return lambda of: (draw(of).mean() - mean).abs() < tolerance


def _full(of: Given, value: float) -> torch.Tensor:
    return torch.full((4096,), value).to(of.device)


def _segments(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(x, "max", lengths=lengths, axis=0, unsafe=True)


def _grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return aten._grouped_mm(x, w, offs=ends.int())


def _convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, groups=4, padding=1, stride=2)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 3, 2, 1)


BY_PLATFORM: Mapping[str, Sample] = {
    "binomial": _near(lambda of: torch.binomial(_full(of, 10.0), _full(of, 0.5)), 5, 0.2),
    "cholesky": lambda of: linalg.cholesky(of.definite(5)),
    "complex_logcumsumexp": lambda of: torch.logcumsumexp(torch.complex(of.normal(6), of.positive(6)), 0),
    "convolution": lambda of: _convolution(of.normal(2, 4, 8, 8), of.normal(8, 1, 3, 3)),
    "convolution_weight_gradient": lambda of: _gradient(_convolution, of.normal(2, 4, 8, 8), of.normal(8, 1, 3, 3)),
    "cumulative_logsumexp": lambda of: torch.logcumsumexp(of.normal(3, 20), 1),
    "eig": _eig,
    "eigh": _eigh,
    "geqrf": _geqrf,
    "grouped_rows": lambda of: _grouped(of.normal(8, 8), of.normal(3, 8, 8), of.table(2, 2, 8)),
    "grouped_sums": lambda of: _grouped(of.normal(8, 8), of.normal(8, 8), of.table(2, 2, 8)),
    "householder_product": lambda of: linalg.householder_product(of.normal(5, 3), of.positive(3)),
    "lu": _lu,
    "max_pool": lambda of: _pooled(of.normal(2, 3, 9, 9)),
    "max_pool_backward": lambda of: _gradient(_pooled, of.normal(2, 3, 9, 9)),
    "pivots_to_permutation": _solved,
    "poisson": _near(lambda of: torch.poisson(_full(of, 5.0)), 5, 0.3),
    "qr": _qr,
    "recompute": _recompute,
    "standard_gamma": _near(lambda of: aten._standard_gamma(_full(of, 5.0)), 5, 0.3),
    "svd": _svd,
    "svdvals": lambda of: linalg.svdvals(of.normal(6, 4)),
    "triangular_solve": lambda of: linalg.solve_triangular(of.definite(5), of.normal(5, 2), upper=False),
    "window_sum": lambda of: F.avg_pool2d(of.normal(2, 3, 9, 9), 3, 2, 1),
}
"""Templates whose lowering for a TPU or GPU differs from the lowering for the CPU. Attention is in `checks.kernels`."""

ALIKE: Mapping[str, Sample] = {
    "airy_ai": lambda of: special.airy_ai(of.normal(8)),
    "bessel_i0": lambda of: special.i0(of.normal(8)),
    "bessel_i0e": lambda of: special.i0e(of.normal(8)),
    "bessel_i1": lambda of: special.i1(of.normal(8)),
    "bessel_j0": lambda of: special.bessel_j0(of.normal(8)),
    "bessel_j1": lambda of: special.bessel_j1(of.normal(8)),
    "bessel_k": lambda of: special.modified_bessel_k0(of.positive(8)),
    "bessel_y0": lambda of: special.bessel_y0(of.positive(8)),
    "bessel_y1": lambda of: special.bessel_y1(of.positive(8)),
    "chebyshev_polynomial": lambda of: special.chebyshev_polynomial_t(of.normal(8), 3),
    "ctc_loss": _ctc,
    "ctc_loss_backward": _ctc_backward,
    "dirichlet_grad": lambda of: aten._dirichlet_grad(of.positive(6), of.positive(6) + 1, of.positive(6) + 3),
    "erfcx": lambda of: special.erfcx(of.normal(8)),
    "fft": lambda of: torch.fft.fft2(of.normal(6, 8)),
    "fractional_max_pool": lambda of: F.fractional_max_pool2d(
        of.normal(1, 2, 8, 8), 2, output_size=4, _random_samples=of.positive(1, 2, 2)
    ),
    "gcd": lambda of: torch.gcd(of.table(12, 18, 35, 0), of.table(8, 27, 14, 5)),
    "grid_sampler": lambda of: F.grid_sample(of.normal(1, 2, 4, 4), of.positive(1, 3, 3, 2), align_corners=False),
    "grid_sampler_backward": lambda of: _gradient(
        lambda x, grid: F.grid_sample(x, grid, align_corners=False), of.normal(1, 2, 4, 4), of.positive(1, 3, 3, 2)
    ),
    "hash_tensor": lambda of: torch.hash_tensor(of.normal(8)),
    "hermite_polynomial": lambda of: special.hermite_polynomial_h(of.normal(8), 3),
    "igamma": lambda of: torch.igamma(of.positive(8), of.positive(8)),
    "igammac": lambda of: torch.igammac(of.positive(8), of.positive(8)),
    "laguerre_polynomial": lambda of: special.laguerre_polynomial_l(of.normal(8), 3),
    "ldl_factor": _ldl,
    "ldl_solve": _ldl_solve,
    "legendre_polynomial": lambda of: special.legendre_polynomial_p(of.positive(8), 3),
    "lexicographic_order": lambda of: torch.unique(of.table([2, 1], [0, 3], [2, 1], [0, 1]), dim=0),
    "lgamma": lambda of: torch.lgamma(of.positive(8)),
    "log_ndtr": lambda of: special.log_ndtr(of.normal(8)),
    "matrix_exp": lambda of: linalg.matrix_exp(of.normal(4, 4)),
    "ndtri": lambda of: special.ndtri(of.positive(8)),
    "searchsorted": lambda of: torch.searchsorted(of.table(1, 3, 5, 7), of.table(0, 3, 6, 9)),
    "segment_reduce": lambda of: _segments(of.normal(6, 3), of.table(2, 1, 3)),
    "segment_reduce_backward": lambda of: _gradient(lambda x: _segments(x, of.table(2, 1, 3)), of.normal(6, 3)),
    "spherical_bessel_j0": lambda of: special.spherical_bessel_j0(of.positive(8)),
    "standard_gamma_grad": _near(lambda of: _gradient(aten._standard_gamma, _full(of, 5.0))[0], 1, 0.1),
    "top_k": lambda of: torch.topk(of.normal(4, 600), 5),
    "trigamma": lambda of: torch.polygamma(1, of.positive(8)),
    "zeta_at_extremes": lambda of: special.zeta(of.positive(8) + 1, of.positive(8)),
}
"Templates with the same lowering on every platform."
