"""Poisson, binomial, gamma and Dirichlet numbers, whose draws take a loop, and the derivatives of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.promotion import promote
from lazytpu.aten.random.draws import key
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.random.draws import Rng
    from lazytpu.ir.builder import Builder


@rule("aten.poisson.default", random=True)
def poisson(b: Builder, self: SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """Poisson numbers with the rates in self."""
    dtype, shape = dtype_of(self), shape_of(self)
    compute = wide(dtype)
    rate = b.convert(self, compute)
    ok = b.compare("GE", rate, full(b, 0, rate))
    b.check(ok, "invalid Poisson rate, expected rate to be non-negative", "RuntimeError")
    return b.convert(b.template("poisson", [key(b, rng), rate], [(compute, shape)])[0], dtype)


@rule("aten.binomial.default", random=True)
def binomial(b: Builder, count: SSAValue, prob: SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """The number of successes in `count` trials with probability `prob`, broadcast."""
    dtype, shape = b.out[0]
    compute = wide(dtype)
    trials, p = promote(b, count, prob, to=compute, shape=shape)
    return b.convert(b.template("binomial", [key(b, rng), trials, p], [(compute, shape)])[0], dtype)


def _gamma(b: Builder, alpha: SSAValue, rng: Rng) -> SSAValue:
    """Gamma numbers of shape alpha, not below the least normal number, as `_s_gamma_cpu` keeps them."""
    dtype = dtype_of(alpha)
    drawn = b.template("standard_gamma", [key(b, rng), alpha], [(dtype, shape_of(alpha))])[0]
    return b.max(drawn, full(b, float(np.finfo(numpy_dtype(dtype)).tiny), drawn))


@rule("aten._standard_gamma.default", random=True)
def standard_gamma(b: Builder, self: SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """Gamma numbers with shape parameters self and scale 1."""
    return _gamma(b, self, rng)


@rule("aten._standard_gamma_grad.default")
def standard_gamma_grad(b: Builder, self: SSAValue, output: SSAValue) -> SSAValue:
    """The derivative of the samples `output` with respect to their shape parameters."""
    return b.template("standard_gamma_grad", [self, output], [(dtype_of(self), shape_of(self))])[0]


@rule("aten._sample_dirichlet.default", random=True)
def sample_dirichlet(b: Builder, self: SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """Gamma numbers with shape parameters self, divided by their sums over the last dim and clamped to (0, 1)."""
    dtype, shape = dtype_of(self), shape_of(self)
    drawn = _gamma(b, self, rng)
    sums = b.reduce("add", drawn, [len(shape) - 1], keepdim=True) if shape else drawn
    limits = np.finfo(numpy_dtype(dtype))
    low, high = b.constant(float(limits.tiny), dtype), b.constant(1 - float(limits.epsneg), dtype)
    return b.clamp(low, b.div(drawn, b.broadcast_to(sums, shape)), high)


@rule("aten._dirichlet_grad.default")
def dirichlet_grad(b: Builder, x: SSAValue, alpha: SSAValue, total: SSAValue) -> SSAValue:
    """The derivative of the Dirichlet samples x with respect to alpha, up to the factor in the autograd formula."""
    dtype, shape = b.out[0]
    operands = promote(b, x, alpha, total, to=dtype, shape=shape)
    return b.template("dirichlet_grad", list(operands), [(dtype, shape)])[0]
