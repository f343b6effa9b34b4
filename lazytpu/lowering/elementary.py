"""Elementary functions in f32 and f64, as close to the exact value as the libraries that the CPU uses.

XLA's CPU client approximates them: `tanh` and `expm1` are 4 to 5 units in the last place (ulp) away, `erf` 5, `sinh` 20
(450 in f64), `erfc` 60 (110 in f64), `erf_inv` 40 and `lgamma` 700 near its zeros (EmitFastTanh and EmitExpm1 in
https://github.com/openxla/xla/blob/main/xla/service/llvm_ir/math_ops.cc and elemental_ir_emitter.cc; the others in
xla/hlo/builder/lib/math.cc). The forms here are within 3, except those of lgamma and
digamma in f64 near their zeros below 0 and at 1.46. Other platforms have functions of their own.

The coefficients interpolate at Chebyshev nodes, computed with 60 digits. Each table has those of f32 and of f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lazytpu.ir import pointwise as ops
from lazytpu.ir.base import TensorOp
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.formulas import FRACTION, Formula
from lazytpu.runtime.xla.mlir import ir

Form = Callable[[Formula], Formula]
FORMS: dict[type[TensorOp], dict[str, Form]] = {}
"The form of an op on the CPU, by dtype."

# ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
LN2 = {"f32": (0.693359375, -2.12194440e-4), "f64": (0.693147180369123816490, 1.90821492927058770002e-10)}
INVERSE_LN2 = 1.4426950408889634
EXP_LIMIT = {"f32": 90.0, "f64": 711.0}
"Where e^x / 2 is infinite, or e^-x is less than the least normal number."

# (e^r - 1 - r) / r^2 by r, |r| < ln(2) / 2.
EXPM1 = {
    "f32": (0.5, 0.166666672, 0.041666463, 0.00833331048, 0.00139338209, 0.000198911803),
    "f64": (
        0.5, 0.16666666666666666, 0.04166666666666668, 0.008333333333333333, 0.0013888888888878923,
        0.00019841269841263198, 2.4801587336841623e-05, 2.755731924748493e-06, 2.7557262852470396e-07,
        2.5052070809943926e-08, 2.0918295266435273e-09, 1.6086732952745416e-10,
    ),
}  # fmt: skip
# (tanh(x) / x - 1) / x^2 by x^2, |x| < 5/8.
TANH = {
    "f32": (-0.333333343, 0.133333042, -0.0539592579, 0.0217689183, -0.00834394526, 0.00229274482),
    "f64": (
        -0.3333333333333333, 0.13333333333333333, -0.053968253968253076, 0.021869488536096472, -0.008863235527882459,
        0.0035921279948771647, -0.0014558338279042078, 0.0005900223329023258, -0.00023909642770594748,
        9.676689210002811e-05, -3.879904218166128e-05, 1.4832897548417558e-05, -4.770834648519767e-06,
        9.171549402654542e-07,
    ),
}  # fmt: skip
# (sinh(x) / x - 1) / x^2 by x^2, |x| < 1.
SINH = {
    "f32": (0.166666672, 0.00833333936, 0.000198381022, 2.80628024e-06),
    "f64": (
        0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
        2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15,
    ),
}  # fmt: skip
# (log(x) - 1 / (2 x) - digamma(x)) x^2 by 1 / x^2: B(2k) / (2k).
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def form(kind: type[TensorOp], *dtypes: str) -> Callable[[Form], Form]:
    """Register the decorated function as the form of an op in these dtypes; in both without."""

    def register(function: Form) -> Form:
        FORMS.setdefault(kind, {}).update(dict.fromkeys(dtypes or tuple(FRACTION), function))
        return function

    return register


def elementary(e: Emission, kind: type[TensorOp], x: ir.Value, dtype: str) -> ir.Value | None:
    """Build the op `kind` of x in its form for the target; None where XLA's own is used."""
    function = FORMS.get(kind, {}).get(dtype) if e.target == "cpu" else None
    return function and function(Formula(e, x, dtype)).value


def reduced(x: Formula, tail: Formula | None = None) -> tuple[Formula, Formula]:
    """(k, e^r - 1) with x + tail = k ln 2 + r, an integer k and |r| < ln(2) / 2."""
    k = (x * INVERSE_LN2).rounded()
    high, low = LN2[x.dtype]
    r = x - k * high - k * low
    if tail is not None:
        r = r + tail
    return k, r + r * r * r.polynomial(EXPM1[x.dtype])


def half_exp(x: Formula) -> Formula:
    """e^x / 2 for x >= 0."""
    k, p = reduced(x.at_most(EXP_LIMIT[x.dtype]))
    return (k - 2).power_of_two() * (2 + 2 * p)


@form(ops.Expm1Op)
def expm1(x: Formula) -> Formula:
    """e^x - 1, from half of it, so that 2^k is finite."""
    lowest = -FRACTION[x.dtype] - 2  # -1 below
    k, p = reduced(x.at_least(lowest).at_most(EXP_LIMIT[x.dtype] - 1))
    half = (k - 1).power_of_two()
    result = 2 * (half * p + (half - 0.5))
    return x.where(abs(x) < 2.0 ** -(FRACTION[x.dtype] + 2), result)  # keeps the sign of zero


@form(ops.TanhOp)
def tanh(x: Formula) -> Formula:
    size, square = abs(x), x * x
    near = size + size * square * square.polynomial(TANH[x.dtype])
    far = 1 - 1 / (half_exp(2 * size) + 0.5)
    return near.where(size < 0.625, far).signed_as(x)


@form(ops.SinhOp)
def sinh(x: Formula) -> Formula:
    size, square = abs(x), x * x
    near = size + size * square * square.polynomial(SINH[x.dtype])
    half = half_exp(size)
    return near.where(size < 1, half - 0.25 / half).signed_as(x)


@form(ops.CoshOp)
def cosh(x: Formula) -> Formula:
    half = half_exp(abs(x))
    return half + 0.25 / half


@form(ops.DigammaOp, "f64")
def digamma(x: Formula) -> Formula:
    """By its recurrence from 10 on, where the asymptotic series ends below the last bit, and by reflection below 0."""
    below = x < 0
    at = (1 - x).where(below, x)
    steps = at.number(0)
    for _ in range(10):
        near = at < 10
        steps = (steps - 1 / at).where(near, steps)
        at = (at + 1).where(near, at)
    t = 1 / (at * at)
    result = steps + (at.log() - 0.5 / at - t * t.polynomial(DIGAMMA))
    fraction = x - x.rounded()  # tan has the period pi
    return (result - math.pi / (fraction * math.pi).tan()).where(below, result)


@form(ops.DigammaOp, "f32")
def digamma_of_f32(x: Formula) -> Formula:
    """In f64: near its zeros, terms cancel."""
    return digamma(x.as_dtype("f64")).as_dtype("f32")
