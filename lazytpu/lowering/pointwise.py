"""Elementwise ops. Most are one StableHLO or CHLO op on the same operands, and are listed in a table."""

from __future__ import annotations

from lazytpu.ir import pointwise as ops
from lazytpu.ir.base import TensorOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.types import (
    COMPLEX_OF,
    FLOATS8,
    REAL_OF,
    bitwidth,
    dtype_of,
    is_complex,
    is_float,
    is_integer,
    is_unsigned,
    shape_of,
)
from lazytpu.lowering import float8
from lazytpu.lowering.complex_functions import complex_power, quotient
from lazytpu.lowering.elementary import elementary
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rewrites import guarded, hidden, reinterpreted
from lazytpu.lowering.rules import RULES, lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

# Functions that StableHLO does not have are in CHLO; XLA expands them by platform and dtype.
DIRECT = {
    "abs": "stablehlo.abs",
    "sign": "stablehlo.sign",
    "ceil": "stablehlo.ceil",
    "floor": "stablehlo.floor",
    "round_nearest_even": "stablehlo.round_nearest_even",
    "exp": "stablehlo.exponential",
    "expm1": "stablehlo.exponential_minus_one",
    "log": "stablehlo.log",
    "sqrt": "stablehlo.sqrt",
    "rsqrt": "stablehlo.rsqrt",
    "cbrt": "stablehlo.cbrt",
    "sin": "stablehlo.sine",
    "cos": "stablehlo.cosine",
    "tan": "stablehlo.tan",
    "tanh": "stablehlo.tanh",
    "logistic": "stablehlo.logistic",
    "erf": "chlo.erf",
    "erfc": "chlo.erfc",
    "erf_inv": "chlo.erf_inv",
    "digamma": "chlo.digamma",
    "bessel_i1e": "chlo.bessel_i1e",
    "acos": "chlo.acos",
    "asin": "chlo.asin",
    "atan": "chlo.atan",
    "sinh": "chlo.sinh",
    "cosh": "chlo.cosh",
    "asinh": "chlo.asinh",
    "acosh": "chlo.acosh",
    "not": "stablehlo.not",
    "popcount": "stablehlo.popcnt",
    "is_finite": "stablehlo.is_finite",
    "real": "stablehlo.real",
    "imag": "stablehlo.imag",
    "add": "stablehlo.add",
    "sub": "stablehlo.subtract",
    "mul": "stablehlo.multiply",
    "rem": "stablehlo.remainder",
    "atan2": "stablehlo.atan2",
    "and": "stablehlo.and",
    "or": "stablehlo.or",
    "xor": "stablehlo.xor",
    "shift_left": "stablehlo.shift_left",
    "shift_right_arithmetic": "stablehlo.shift_right_arithmetic",
    "shift_right_logical": "stablehlo.shift_right_logical",
    "complex": "stablehlo.complex",
    "next_after": "chlo.next_after",
    "polygamma": "chlo.polygamma",
    "zeta": "chlo.zeta",
    "select": "stablehlo.select",
}


def _direct(target: str):
    def rule(e: Emission, op: TensorOp, *operands: ir.Value) -> ir.Value:
        own = elementary(e, type(op), operands[0], dtype_of(op.operand_type(0)))
        return own or e.create(target, guarded(e, op, operands), e.result(op))

    return rule


RULES.update({OPS[name]: _direct(target) for name, target in DIRECT.items()})


@lowers(ops.NegOp)
def negate(e: Emission, op: ops.NegOp, x: ir.Value) -> ir.Value:
    """-x; of floats on the CPU -0.0 - x, which is the same. XLA:CPU offloads reductions with the arithmetic around them
    to YNNPACK, which negates by 0.0 - x and so loses the sign of a zero."""
    (x,), dtype = guarded(e, op, (x,)), dtype_of(op.operand_type(0))
    if e.target != "cpu" or not is_float(dtype) or dtype in FLOATS8:
        return hlo.negate(x)
    return hlo.subtract(e.constant(-0.0, dtype, shape_of(op.operand_type(0))), x)


@lowers(ops.DivOp)
def divide(e: Emission, op: ops.DivOp, x: ir.Value, y: ir.Value) -> ir.Value:
    result, dtype = hlo.divide(*guarded(e, op, (x, y))), dtype_of(op.operand_type(0))
    return quotient(e, x, y, result, REAL_OF[dtype]) if is_complex(dtype) else result


@lowers(ops.PowOp)
def power(e: Emission, op: ops.PowOp, x: ir.Value, y: ir.Value) -> ir.Value:
    if e.target == "cpu" and dtype_of(op.operand_type(0)) == "c64":
        return complex_power(e, x, y)
    x, y = guarded(e, op, (x, y))
    dtype = dtype_of(op.operand_type(0))
    return _integer_power(e, x, y, dtype) if is_integer(dtype) else hlo.power(x, y)


DIGIT = 6
"""The bits of an integer exponent that XLA reads (EmitIntegerPow in
https://github.com/openxla/xla/blob/main/xla/service/elemental_ir_emitter.cc), besides the sign."""


def _integer_power(e: Emission, x: ir.Value, y: ir.Value, dtype: str) -> ir.Value:
    """x^y of integers, which wraps around: by digits of the exponent, from the highest. Of a negative exponent XLA
    computes the power itself."""
    shape = ir.RankedTensorType(x.type).shape
    factors: list[ir.Value] = []
    for shift in reversed(range(0, bitwidth(dtype), DIGIT)):
        shifted = hlo.shift_right_logical(y, e.constant(shift, dtype, shape)) if shift else y
        factors.append(hlo.power(x, hlo.and_(shifted, e.constant(2**DIGIT - 1, dtype, shape))))
    result = factors[0]
    for factor in factors[1:]:
        for _ in range(DIGIT):
            result = hlo.multiply(result, result)
        result = hlo.multiply(result, factor)
    if is_unsigned(dtype):
        return result
    return hlo.select(e.compare("LT", y, e.constant(0, dtype, shape), dtype), hlo.power(x, y), result)


@lowers(ops.Log1pOp)
def log1p(e: Emission, op: ops.Log1pOp, x: ir.Value) -> ir.Value:
    dtype = dtype_of(op.operand_type(0))
    return _log1p(e, x) if dtype == "f64" else e.create("stablehlo.log_plus_one", [x], e.result(op))


def _log1p(e: Emission, x: ir.Value) -> ir.Value:
    """log(1 + x) in f64. XLA's series loses 50 ulp where |x| is about 1/2 (EmitLog1p in
    https://github.com/openxla/xla/blob/main/xla/service/elemental_ir_emitter.cc): here the logarithm of the rounded
    sum, and a correction by the rounding error."""
    one = e.constant(1, "f64", ir.RankedTensorType(x.type).shape)
    total = hidden(e, hlo.add(one, x), "f64")
    error = hlo.subtract(x, hlo.subtract(total, one))
    result = hlo.add(hlo.log(total), hlo.divide(error, total))
    exact = e.compare("EQ", error, error, "f64")  # not where x is infinite or NaN
    small = e.compare("EQ", total, one, "f64")  # keeps the sign of zero
    positive = e.compare("GT", total, hlo.subtract(one, one), "f64")
    return hlo.select(small, x, hlo.select(hlo.and_(exact, positive), result, hlo.log(total)))


@lowers(ops.AtanhOp)
def atanh(e: Emission, op: ops.AtanhOp, x: ir.Value) -> ir.Value:
    if dtype_of(op.operand_type(0)) != "f64":
        return elementary(e, type(op), x, dtype_of(op.operand_type(0))) or e.create("chlo.atanh", [x], e.result(op))
    half = e.constant(0.5, "f64", shape_of(op.result_type()))
    return hlo.multiply(half, hlo.subtract(_log1p(e, x), _log1p(e, hlo.negate(x))))


@lowers(ops.MaxOp)
def maximum(e: Emission, op: ops.MaxOp, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return e.extreme("max", lhs, rhs, dtype_of(op.operand_type(0)))


@lowers(ops.MinOp)
def minimum(e: Emission, op: ops.MinOp, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return e.extreme("min", lhs, rhs, dtype_of(op.operand_type(0)))


@lowers(ops.ClampOp)
def clamp(e: Emission, op: ops.ClampOp, low: ir.Value, x: ir.Value, high: ir.Value) -> ir.Value:
    dtype = dtype_of(op.operand_type(1))
    low, high = (hlo.broadcast_in_dim(e.result(op), v, []) if v.type != x.type else v for v in (low, high))
    return e.extreme("min", e.extreme("max", x, low, dtype), high, dtype)


@lowers(ops.CompareOp)
def compare(e: Emission, op: ops.CompareOp, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return e.compare(op.direction.data, lhs, rhs, dtype_of(op.operand_type(0)))


@lowers(ops.BitcastConvertOp)
def bitcast_convert(e: Emission, op: ops.BitcastConvertOp, x: ir.Value) -> ir.Value:
    source, target = dtype_of(op.operand_type(0)), dtype_of(op.result_type())
    if (source, target) == ("f64", "i64") and e.target == "tpu":
        # Via ui64: libtpu 0.0.42 takes the halves for unsigned, and rejects their users if they are signed.
        x = e.create("stablehlo.bitcast_convert", [x], e.tensor("ui64", shape_of(op.operand_type(0))))
        return e.create("stablehlo.bitcast_convert", [x], e.result(op))
    return reinterpreted(e, x, e.result(op))


@lowers(ops.ConvertOp)
def convert(e: Emission, op: ops.ConvertOp, x: ir.Value) -> ir.Value:
    source, target = dtype_of(op.operand_type(0)), dtype_of(op.result_type())
    if source in FLOATS8:
        x, source = float8.decode(e, x, source), "f32"
    if target in FLOATS8:
        return float8.encode(e, _converted(e, x, source, "f32"), target)
    return _converted(e, x, source, target)


def _converted(e: Emission, x: ir.Value, source: str, target: str) -> ir.Value:
    shape = ir.RankedTensorType(x.type).shape
    if is_complex(source) and target == "i1":
        return e.compare("NE", x, e.constant(0, source, shape), source)
    if source == "i1" and (is_float(target) or is_complex(target)):
        # Not a convert: XLA turns `a * convert(p)` into a select, which makes infinity times false 0.
        one, zero = (e.constant(number, target, shape) for number in (1, 0))
        return e.create("stablehlo.select", [x, one, zero], one.type)
    # StableHLO does not define complex to real; numbers to i1 are x != 0 in StableHLO itself.
    return e.convert(hlo.real(x) if is_complex(source) and target not in COMPLEX_OF.values() else x, target)
