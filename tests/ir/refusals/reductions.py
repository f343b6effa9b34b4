"""Invalid reductions and contractions."""

from __future__ import annotations

from tests.ir.refusals.making import Refusal

CONV = {
    "strides": (1, 1),
    "low": (0, 0),
    "high": (0, 0),
    "lhs_dilation": (1, 1),
    "rhs_dilation": (1, 1),
    "window_reversal": (0, 0),
    "layout": "NC01,OI01,NC01",
    "precision": "highest",
}
DOT = {"lhs_contract": (1,), "rhs_contract": (0,), "precision": "highest"}
WINDOW = {
    "kind": "add",
    "window": (2,),
    "strides": (1,),
    "low": (0,),
    "high": (0,),
    "base_dilations": (1,),
    "window_dilations": (1,),
}

REFUSED: list[Refusal] = [
    ("reduce", "f32[2]", "f32[]", {"kind": "sum", "dims": (0,)}, "kind must be one of add, mul, max, min, and, or"),
    (
        "reduce",
        "f32[2]",
        "f32[]",
        {"kind": "and", "dims": (0,)},
        "expected an operand of a reduction by and of dtype i1, i8",
    ),
    (
        "reduce",
        "i1[2]",
        "i1[]",
        {"kind": "add", "dims": (0,)},
        "expected an operand of a reduction by add of dtype f16",
    ),
    ("reduce", "f32[2]", "f32[]", {"kind": "add", "dims": (-1,)}, "dims is -1; expected 0 <= dims < 1"),
    ("reduce", "f32[2,3]", "f32[2]", {"kind": "add", "dims": (0,)}, "expected result types tensor<3xf32>"),
    ("argreduce", "f32[2,0]", "f32[2] i64[2]", {"kind": "max", "dim": 1}, "dimension 1 of tensor<2x0xf32> is empty"),
    ("argreduce", "f32[2]", "f32[] i32[]", {"kind": "max", "dim": 0}, "expected result types tensor<f32>, tensor<i64>"),
    ("argreduce", "f32[2]", "f32[] i64[]", {"kind": "add", "dim": 0}, "kind must be one of max, min"),
    ("reduce_window", "f32[4]", "f32[3]", WINDOW | {"strides": (0,)}, "strides is [0]; expected numbers >= 1"),
    ("reduce_window", "f32[4]", "f32[3]", WINDOW | {"window": (2, 2)}, "window is [2, 2]; expected 1 numbers"),
    ("reduce_window", "f32[4]", "f32[3]", WINDOW | {"low": (-5,)}, "removes more than all of dimension 0"),
    ("cumulative", "f32[4]", "f32[4]", {"kind": "and", "dim": 0}, "kind must be one of add, mul, max, min"),
    ("cumulative", "f32[]", "f32[]", {"kind": "add", "dim": 0}, "dim is 0; expected 0 <= dim < 0"),
    ("dot_general", "f32[2,3] f32[4,5]", "f32[2,5]", DOT, "contracted dims of tensor<2x3xf32> and tensor<4x5xf32>"),
    ("dot_general", "f32[2,3] bf16[3,5]", "f32[2,5]", DOT, "operands must have the same dtype"),
    ("dot_general", "i1[2,3] i1[3,5]", "i1[2,5]", DOT, "; got i1"),
    ("dot_general", "f32[2,3] f32[3,5]", "f32[2,5]", DOT | {"precision": "best"}, "precision must be one of default"),
    ("dot_general", "f32[2,3] f32[3,5]", "f32[2,5]", DOT | {"lhs_batch": (1,)}, "expected distinct dimensions"),
    ("dot_general", "f32[2,3] f32[3,5]", "f32[5,2]", DOT, "expected result types tensor<2x5xf32>"),
    ("convolution", "f32[1,3,8,8] f32[4,2,3,3]", "f32[1,4,6,6]", CONV, "3 input features; the kernel"),
    ("convolution", "f32[1,3,8,8] f32[4,3,3]", "f32[1,4,6,6]", CONV, "expected input and kernel of rank 4"),
    (
        "convolution",
        "f32[1,3,8,8] f32[4,3,3,3]",
        "f32[1,4,6,6]",
        CONV | {"layout": "NC01,OI01"},
        "expected input, kernel",
    ),
    ("convolution", "f32[1,3,8,8] f32[4,3,3,3]", "f32[1,4,6,6]", CONV | {"layout": "NC01,OI12,NC01"}, "in 'OI12'"),
    ("convolution", "f32[1,4,8,8] f32[3,2,3,3]", "f32[1,3,6,6]", CONV | {"feature_groups": 2}, "do not divide into 2"),
    (
        "convolution",
        "f32[2,4,8,8] f32[4,2,3,3]",
        "f32[1,4,6,6]",
        CONV | {"feature_groups": 2, "batch_groups": 2},
        "one group count to be 1",
    ),
    (
        "convolution",
        "f32[1,3,8,8] f32[4,3,3,3]",
        "f32[1,4,6,6]",
        CONV | {"window_reversal": (0,)},
        "window_reversal is",
    ),
    ("convolution", "f32[1,3,8,8] f32[4,3,3,3]", "f32[1,4,8,8]", CONV, "expected result types tensor<1x4x6x6xf32>"),
]
