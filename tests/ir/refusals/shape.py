"""Invalid ops of shapes."""

from __future__ import annotations

from tests.ir.refusals.making import Refusal

REFUSED: list[Refusal] = [
    ("broadcast_in_dim", "f32[2]", "f32[3]", {"dims": (0,)}, "size 2 is neither 1 nor 3"),
    ("broadcast_in_dim", "f32[2]", "f32[2,2]", {"dims": ()}, "dims is []; expected 1 numbers, got 0"),
    ("broadcast_in_dim", "f32[2]", "f32[2]", {"dims": (1,)}, "dims is 1; expected 0 <= dims < 1"),
    ("broadcast_in_dim", "f32[2,2]", "f32[2,2]", {"dims": (0, 0)}, "dims are [0, 0]; expected distinct dimensions"),
    ("reshape", "f32[6]", "f32[4]", {}, "cannot reshape tensor<6xf32> (6 elements) to shape [4] (4 elements)"),
    ("reshape", "f32[6]", "i32[2,3]", {}, "expected result types tensor<2x3xf32>"),
    ("transpose", "f32[2,3]", "f32[3,2]", {"permutation": (1, 1)}, "[1, 1] is not a permutation of the 2 dimensions"),
    ("transpose", "f32[2,3]", "f32[2,3]", {"permutation": (1, 0)}, "expected result types tensor<3x2xf32>"),
    ("slice", "f32[4]", "f32[4]", {"starts": (0,), "limits": (5,), "strides": (1,)}, "slice 0:5:1 of dimension 0"),
    ("slice", "f32[4]", "f32[4]", {"starts": (0,), "limits": (4,), "strides": (0,)}, "stride >= 1"),
    ("slice", "f32[4]", "f32[4]", {"starts": (0,), "limits": (4, 1), "strides": (1,)}, "limits is [4, 1]"),
    ("pad", "f32[2] f64[]", "f32[2]", {"low": (0,), "high": (0,), "interior": (0,)}, "0-d with dtype f32; got"),
    ("pad", "f32[2] f32[]", "f32[0]", {"low": (-3,), "high": (0,), "interior": (0,)}, "-1 elements long"),
    ("pad", "f32[2] f32[]", "f32[0]", {"low": (1,), "high": (0,), "interior": (-1,)}, "interior padding of at least 0"),
    ("concatenate", "", "f32[2]", {"dim": 0}, "concatenate needs at least one operand"),
    ("concatenate", "f32[2] i32[2]", "f32[4]", {"dim": 0}, "operands must have one dtype and rank"),
    ("concatenate", "f32[2,3] f32[3,3]", "f32[2,6]", {"dim": 1}, "operands may differ only in dimension 1"),
    ("concatenate", "f32[2]", "f32[2]", {"dim": 1}, "dim is 1; expected 0 <= dim < 1"),
    ("reverse", "f32[2]", "f32[2]", {"dims": (0, 0)}, "expected distinct dimensions"),
    ("barrier", "f32[2]", "f32[3]", {}, "expected result types tensor<2xf32>, got tensor<3xf32>"),
]
