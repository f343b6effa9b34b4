"""Hyperbolic functions and the tangent of complex numbers, from real ones in f64, for the CPU (`elementary.py` has the
reason). XLA's sum e^z and e^-z, and so lose small real parts altogether."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce

from lazytpu.ir import pointwise as ops
from lazytpu.lowering import elementary
from lazytpu.lowering.elementary import FORMS
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.formulas import Formula
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

Parts = tuple[Formula, Formula]
FAR = 22.0
"Where tanh is 1 in f64."


def _sinh(x: Formula, y: Formula) -> Parts:
    return elementary.sinh(x) * y.cos(), (elementary.cosh(x) * y.sin()).where(abs(y) > 0, y)


def _cosh(x: Formula, y: Formula) -> Parts:
    imag = elementary.sinh(x) * y.sin()
    return elementary.cosh(x) * y.cos(), imag.where(abs(y) > 0, y * x.number(1).signed_as(x))


def _tanh(x: Formula, y: Formula) -> Parts:
    """W. Kahan, "Branch cuts for complex elementary functions", 1987."""
    far, size = abs(x) > FAR, abs(x)
    t, s = y.tan(), elementary.sinh(x.number(1).where(far, x))
    beta, rho = 1 + t * t, (1 + s * s).sqrt()
    below = 1 + beta * (s * s)
    one = x.number(1).signed_as(x)
    decayed = 4 * y.sin() * y.cos() * (-2 * size).exp()
    return one.where(far, beta * rho * s / below), decayed.where(far, t / below)


def _tan(x: Formula, y: Formula) -> Parts:
    """-i tanh(i z)."""
    real, imag = _tanh(-y, x)
    return imag, -real


def _form(function: Callable[[Formula, Formula], Parts], name: str, part: str, z: Formula) -> Formula:
    """The function of finite numbers; XLA's has the limits at others."""
    x, y = (Formula(z.e, part_of(z.value), part).as_dtype("f64") for part_of in (hlo.real, hlo.imag))
    parts = [result.as_dtype(part).value for result in function(x, y)]
    finite = z.e.binary("and", *(hlo.is_finite(v.value) for v in (x, y)))
    return z.of(hlo.select(finite, hlo.complex(*parts), z.e.create(name, [z.value], z.value.type)))


def complex_power(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x^y of c64 as e^(y log x), in f64. XLA multiplies two powers, of which one may be infinite and the other 0."""
    (a, b), (c, d) = ([Formula(e, p(v), "f32").as_dtype("f64") for p in (hlo.real, hlo.imag)] for v in (x, y))
    log, phase = 0.5 * (a * a + b * b).log(), a.of(hlo.atan2(b.value, a.value))
    size, angle = (c * log - d * phase).exp(), c * phase + d * log
    sine = (size * angle.sin()).where(abs(angle) > 0, angle)
    parts = [part.as_dtype("f32").value for part in (size * angle.cos(), sine)]
    usual = reduce(partial(e.binary, "and"), [abs(log) < math.inf, abs(c) < math.inf, abs(d) < math.inf])
    xla = e.convert(hlo.power(e.convert(x, "c128"), e.convert(y, "c128")), "c64")  # of 0 and numbers not finite
    return hlo.select(usual, hlo.complex(*parts), xla)


for _op, _function, _name in (
    (ops.SinhOp, _sinh, "chlo.sinh"),
    (ops.CoshOp, _cosh, "chlo.cosh"),
    (ops.TanOp, _tan, "stablehlo.tan"),
    (ops.TanhOp, _tanh, "stablehlo.tanh"),
):
    for _dtype, _part in (("c64", "f32"), ("c128", "f64")):
        FORMS.setdefault(_op, {})[_dtype] = partial(_form, _function, _name, _part)
