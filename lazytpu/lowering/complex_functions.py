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
    """The function of numbers whose angle is finite; XLA's has the limits at others."""
    x, y = (Formula(z.e, part_of(z.value), part).as_dtype("f64") for part_of in (hlo.real, hlo.imag))
    parts = [result.as_dtype(part).value for result in function(x, y)]
    finite = hlo.is_finite((x if function is _tan else y).value)
    return z.of(hlo.select(finite, hlo.complex(*parts), z.e.create(name, [z.value], z.value.type)))


def quotient(e: Emission, x: ir.Value, y: ir.Value, result: ir.Value, part: str) -> ir.Value:
    """x / y of complex numbers: `result`, or where a part is not finite or y is 0, the quotient by the algorithm of
    torch and numpy (c10/util/complex.h, after R. L. Smith, "Algorithm 116: complex division", 1962)."""
    (a, b), (c, d) = ([Formula(e, p(v), part) for p in (hlo.real, hlo.imag)] for v in (x, y))
    b = d.where(e.compare("NE", d.value, d.value, part), b)  # XLA drops a 0 that is added, and with it signs of zero
    larger = e.compare("GE", abs(c).value, abs(d).value, part)
    first, second = c.where(larger, d), d.where(larger, c)
    ratio = second / first
    scale = 1 / (first + second * ratio)
    real = (a + b * ratio).where(larger, a * ratio + b) * scale
    imag = (b - a * ratio).where(larger, b * ratio - a) * scale
    nonzero = e.binary("or", abs(c) > 0, abs(d) > 0)
    number = e.binary("or", nonzero, e.compare("NE", (c + d).value, (c + d).value, part))
    real, imag = real.where(number, a / abs(c)), imag.where(number, b / abs(d))
    usual = reduce(partial(e.binary, "and"), [nonzero, *(hlo.is_finite(v.value) for v in (a, b, c, d))])
    return hlo.select(usual, result, hlo.complex(real.value, imag.value))


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


def _wide_form(name: str, z: Formula) -> Formula:
    """XLA's function in c128: in c64, it takes squares of small parts for 0."""
    wide = z.e.convert(z.value, "c128")
    return z.of(z.e.convert(z.e.create(name, [wide], wide.type), "c64"))


for _op, _name in ((ops.AtanOp, "chlo.atan"), (ops.AtanhOp, "chlo.atanh")):
    FORMS.setdefault(_op, {})["c64"] = partial(_wide_form, _name)
for _op, _function, _name in (
    (ops.SinhOp, _sinh, "chlo.sinh"),
    (ops.CoshOp, _cosh, "chlo.cosh"),
    (ops.TanOp, _tan, "stablehlo.tan"),
    (ops.TanhOp, _tanh, "stablehlo.tanh"),
):
    for _dtype, _part in (("c64", "f32"), ("c128", "f64")):
        FORMS.setdefault(_op, {})[_dtype] = partial(_form, _function, _name, _part)
