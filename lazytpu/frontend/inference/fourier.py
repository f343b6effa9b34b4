"""Strides of Fourier transforms, as on the CPU (torch's mkl/SpectralOps.cpp): transformed dimensions are innermost, in
the order in which they are transformed. torch's own meta functions follow the passes of other devices."""

from __future__ import annotations

import torch
from torch import Tensor

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.torch_private import meta_fft, sorted_fft_dims

aten = torch.ops.aten


@override("aten._fft_c2c.default")
def fft_c2c(self: Tensor, dim: list[int], normalization: int, forward: bool) -> Tensor:
    """Transform all dimensions in one pass, the innermost first."""
    if not dim or not self.is_complex():
        return aten._fft_c2c.default(self, dim, normalization, forward)
    return meta_fft(self.new_empty(self.shape), self, self.shape, sorted_fft_dims(self, dim), forward=forward)


@override("aten._fft_r2c.default")
def fft_r2c(self: Tensor, dim: list[int], normalization: int, onesided: bool) -> Tensor:
    """Transform the last dimension first, which is halved if `onesided`, then the others as in `fft_c2c`."""
    result = aten._fft_r2c.default(self, dim, normalization, onesided)
    return meta_fft(result, self, list(result.shape), sorted_fft_dims(self, dim, exclude_last=True), forward=True)


@override("aten._fft_c2r.default")
def fft_c2r(self: Tensor, dim: list[int], normalization: int, last_dim_size: int) -> Tensor:
    """Transform all dimensions but the last as complex numbers, then the last, to the requested size."""
    result = aten._fft_c2r.default(self, dim, normalization, last_dim_size)
    inner = self if len(dim) == 1 else fft_c2c(self, dim[:-1], normalization, False)
    return meta_fft(result, inner, list(result.shape), [dim[-1]], forward=False)
