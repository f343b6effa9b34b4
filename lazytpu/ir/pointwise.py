"""Elementwise ops: on one operand (unary.py), on two operands (binary.py), and the others, defined here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from lazytpu.ir.base import TENSOR, WORD, TensorOp, check_dtype, one_of
from lazytpu.ir.binary import (
    AddOp,
    AndOp,
    Atan2Op,
    BinaryOp,
    ComplexOp,
    DivOp,
    MaxOp,
    MinOp,
    MulOp,
    NextAfterOp,
    OrOp,
    PolygammaOp,
    PowOp,
    RemOp,
    ShiftLeftOp,
    ShiftRightArithmeticOp,
    ShiftRightLogicalOp,
    SubOp,
    XorOp,
    ZetaOp,
)
from lazytpu.ir.types import (
    BOOL,
    DTYPES,
    FLOATS,
    FLOATS8,
    INTEGERS,
    bitwidth,
    dtype_of,
    is_complex,
    shape_of,
    tensor_type,
)
from lazytpu.ir.unary import (
    AbsOp,
    AcoshOp,
    AcosOp,
    AsinhOp,
    AsinOp,
    AtanhOp,
    AtanOp,
    BesselI1eOp,
    CbrtOp,
    CeilOp,
    CoshOp,
    CosOp,
    DigammaOp,
    ErfcOp,
    ErfInvOp,
    ErfOp,
    Expm1Op,
    ExpOp,
    FloorOp,
    ImagOp,
    IsFiniteOp,
    LgammaOp,
    Log1pOp,
    LogisticOp,
    LogOp,
    NegOp,
    NotOp,
    PopcountOp,
    RealOp,
    RoundNearestEvenOp,
    RsqrtOp,
    SignOp,
    SinhOp,
    SinOp,
    SqrtOp,
    TanhOp,
    TanOp,
    UnaryOp,
)

DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


@irdl_op_definition
class CompareOp(TensorOp):
    """x `direction` y as `i1`. Floats compare as in IEEE 754 (NaN is unequal to all), complex numbers by EQ and NE
    only."""

    name = "lazytpu.compare"
    HEAD: ClassVar = "direction"
    lhs = operand_def(TENSOR)
    rhs = operand_def(TENSOR)
    direction = prop_def(WORD)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (
            compare_type(one_of(self.direction, DIRECTIONS, "direction"), self.operand_type(0), self.operand_type(1)),
        )


@irdl_op_definition
class SelectOp(TensorOp):
    """on_true where pred is true, else on_false; pred (`i1`) is 0-d or has the shape of the other operands."""

    name = "lazytpu.select"
    pred = operand_def(TENSOR)
    on_true = operand_def(TENSOR)
    on_false = operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (select_type(*(self.operand_type(i) for i in range(3))),)


@irdl_op_definition
class ClampOp(TensorOp):
    """min(max(operand, low), high); the bounds are 0-d or have the operand's shape. NaN stays NaN."""

    name = "lazytpu.clamp"
    low = operand_def(TENSOR)
    operand = operand_def(TENSOR)
    high = operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (clamp_type(*(self.operand_type(i) for i in range(3))),)


@irdl_op_definition
class ConvertOp(TensorOp):
    """The same numbers in the dtype of the result: rounding to nearest even for floats, truncation toward zero from
    floats to integers, x != 0 to `i1`, 0 and 1 from `i1`, and the real part from complex to real."""

    name = "lazytpu.convert"
    operand = operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (tensor_type(dtype_of(self.result_type()), shape_of(self.operand_type(0))),)


@irdl_op_definition
class BitcastConvertOp(TensorOp):
    """The same bits as numbers of the result's dtype. A narrower dtype adds a last dimension (the ratio of the bit
    widths, least significant part first); a wider one removes it."""

    name = "lazytpu.bitcast_convert"
    operand = operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (bitcast_type(self.operand_type(0), dtype_of(self.result_type())),)


def compare_type(direction: str, x: AnyTensorType, y: AnyTensorType) -> AnyTensorType:
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}; got {direction!r}")
    if x != y:
        raise ValueError(f"operands must have the same type; got {x} and {y}")
    check_dtype(dtype_of(x), DTYPES - FLOATS8, "operands")
    if is_complex(dtype_of(x)) and direction not in ("EQ", "NE"):
        raise ValueError(f"complex numbers have no order: expected direction EQ or NE, got {direction}")
    return tensor_type("i1", shape_of(x))


def select_type(pred: AnyTensorType, on_true: AnyTensorType, on_false: AnyTensorType) -> AnyTensorType:
    check_dtype(dtype_of(pred), BOOL, "a pred")
    if on_true != on_false:
        raise ValueError(f"on_true and on_false must have the same type; got {on_true} and {on_false}")
    if shape_of(pred) not in ((), shape_of(on_true)):
        raise ValueError(f"pred must be 0-d or have the shape {list(shape_of(on_true))} of the others; got {pred}")
    return on_true


def clamp_type(low: AnyTensorType, operand: AnyTensorType, high: AnyTensorType) -> AnyTensorType:
    check_dtype(dtype_of(operand), FLOATS | INTEGERS | BOOL)
    for name, bound in (("low", low), ("high", high)):
        if dtype_of(bound) != dtype_of(operand) or shape_of(bound) not in ((), shape_of(operand)):
            raise ValueError(f"{name} must be 0-d or shaped as the operand, with its dtype: {operand}; got {bound}")
    return operand


def bitcast_type(operand: AnyTensorType, dtype: str) -> AnyTensorType:
    source, shape = dtype_of(operand), shape_of(operand)
    before, after = bitwidth(source), bitwidth(dtype)
    if (source == "i1") != (dtype == "i1") or is_complex(source) != is_complex(dtype):
        raise ValueError(f"cannot reinterpret the bits of {source} as {dtype}")
    if before == after:
        return tensor_type(dtype, shape)
    if before > after:
        return tensor_type(dtype, (*shape, before // after))
    if not shape or shape[-1] != after // before:
        raise ValueError(
            f"to read {source} as {dtype} the last dimension must be {after // before}; got shape {list(shape)}"
        )
    return tensor_type(dtype, shape[:-1])


__all__ = [
    "AbsOp",
    "AcosOp",
    "AcoshOp",
    "AddOp",
    "AndOp",
    "AsinOp",
    "AsinhOp",
    "Atan2Op",
    "AtanOp",
    "AtanhOp",
    "BesselI1eOp",
    "BinaryOp",
    "BitcastConvertOp",
    "CbrtOp",
    "CeilOp",
    "ClampOp",
    "CompareOp",
    "ComplexOp",
    "ConvertOp",
    "CosOp",
    "CoshOp",
    "DigammaOp",
    "DivOp",
    "ErfInvOp",
    "ErfOp",
    "ErfcOp",
    "ExpOp",
    "Expm1Op",
    "FloorOp",
    "ImagOp",
    "IsFiniteOp",
    "LgammaOp",
    "Log1pOp",
    "LogOp",
    "LogisticOp",
    "MaxOp",
    "MinOp",
    "MulOp",
    "NegOp",
    "NextAfterOp",
    "NotOp",
    "OrOp",
    "PolygammaOp",
    "PopcountOp",
    "PowOp",
    "RealOp",
    "RemOp",
    "RoundNearestEvenOp",
    "RsqrtOp",
    "SelectOp",
    "ShiftLeftOp",
    "ShiftRightArithmeticOp",
    "ShiftRightLogicalOp",
    "SignOp",
    "SinOp",
    "SinhOp",
    "SqrtOp",
    "SubOp",
    "TanOp",
    "TanhOp",
    "UnaryOp",
    "XorOp",
    "ZetaOp",
]
