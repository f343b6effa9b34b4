"""Invalid constants and elementwise ops."""

from __future__ import annotations

from lazytpu.ir.literals import scalar
from tests.ir.refusals.making import Refusal

REFUSED: list[Refusal] = [
    ("constant", "", "f32[2]", {"value": scalar(1, "i32")}, "is not a number of dtype f32"),
    ("constant", "", "f32[2]", {}, "property 'value' expected"),
    ("dense_constant", "", "f32[2]", {"data": "00"}, "tensor<2xf32> needs 16 hexadecimal digits; got 2"),
    ("dense_constant", "", "i8[1]", {"data": "zz"}, "non-hexadecimal"),
    ("iota", "", "i32[2]", {"dim": 1}, "dim is 1; expected 0 <= dim < 1 (the rank)"),
    ("iota", "", "i1[2]", {"dim": 0}, "expected a result of dtype f16, bf16, f32"),
    ("number", "f32[2,2]", "f32[]", {"index": 0}, "expected a 1-D pack with more than 0 numbers; got tensor<2x2xf32>"),
    ("number", "f32[2]", "f32[]", {"index": 2}, "expected a 1-D pack with more than 2 numbers; got tensor<2xf32>"),
    ("number", "f32[2]", "f64[]", {"index": 1}, "expected result types tensor<f32>, got tensor<f64>"),
    (
        "exp",
        "i32[2]",
        "i32[2]",
        {},
        "expected an operand of dtype f16, bf16, f32, f64, c64, c128; got i32",
    ),
    ("exp", "f32[2]", "f32[3]", {}, "expected result types tensor<2xf32>, got tensor<3xf32>"),
    ("exp", "f32[2] f32[2]", "f32[2]", {}, "Expected 1 operand"),
    (
        "not",
        "f32[2]",
        "f32[2]",
        {},
        "expected an operand of dtype i1, i8, i16, i32, i64, ui8, ui16, ui32, ui64; got f32",
    ),
    ("abs", "c64[2]", "c64[2]", {}, "expected result types tensor<2xf32>, got tensor<2xcomplex<f32>>"),
    ("is_finite", "f32[2]", "f32[2]", {}, "expected result types tensor<2xi1>, got tensor<2xf32>"),
    ("real", "c128[2]", "f32[2]", {}, "expected result types tensor<2xf64>"),
    ("add", "f32[2] f32[3]", "f32[2]", {}, "operands must have the same type; got tensor<2xf32> and tensor<3xf32>"),
    ("add", "f32[2] bf16[2]", "f32[2]", {}, "operands must have the same type; got tensor<2xf32> and tensor<2xbf16>"),
    ("sub", "i1[2] i1[2]", "i1[2]", {}, "; got i1"),
    ("max", "c64[2] c64[2]", "c64[2]", {}, "; got c64"),
    ("shift_left", "f32[2] f32[2]", "f32[2]", {}, "; got f32"),
    ("complex", "bf16[2] bf16[2]", "c64[2]", {}, "expected operands of dtype f32, f64; got bf16"),
    ("compare", "f32[2] f32[2]", "i1[2]", {"direction": "UGT"}, "direction must be one of EQ, NE, LT, LE, GT, GE"),
    ("compare", "c64[2] c64[2]", "i1[2]", {"direction": "LT"}, "complex numbers have no order"),
    ("compare", "f32[2] f32[2]", "f32[2]", {"direction": "LT"}, "expected result types tensor<2xi1>"),
    ("compare", "f32[2] f64[2]", "i1[2]", {"direction": "LT"}, "operands must have the same type"),
    ("select", "i8[2] f32[2] f32[2]", "f32[2]", {}, "expected a pred of dtype i1; got i8"),
    ("select", "i1[3] f32[2] f32[2]", "f32[2]", {}, "pred must be 0-d or have the shape [2] of the others"),
    ("select", "i1[2] f32[2] i32[2]", "f32[2]", {}, "on_true and on_false must have the same type"),
    ("clamp", "f64[] f32[2] f32[2]", "f32[2]", {}, "low must be 0-d or shaped as the operand"),
    ("clamp", "f32[] f32[2] f32[3]", "f32[2]", {}, "high must be 0-d or shaped as the operand"),
    ("clamp", "c64[] c64[2] c64[]", "c64[2]", {}, "; got c64"),
    ("convert", "f32[2]", "i32[3]", {}, "expected result types tensor<2xi32>, got tensor<3xi32>"),
    ("bitcast_convert", "f32[2]", "i16[2]", {}, "expected result types tensor<2x2xi16>, got tensor<2xi16>"),
    ("bitcast_convert", "i16[2,3]", "f32[2]", {}, "the last dimension must be 2; got shape [2, 3]"),
    ("bitcast_convert", "i1[8]", "i8[]", {}, "cannot reinterpret the bits of i1 as i8"),
    ("bitcast_convert", "c64[8]", "i64[8]", {}, "cannot reinterpret the bits of c64 as i64"),
]
