"""Invalid branches and loops."""

from __future__ import annotations

from tests.ir.refusals.making import Properties

SAME = ("f32[2]", "0")
GOES, STEP = ("i1[] f32[2]", "0"), ("i1[] f32[2]", "0 1")
LOOP = "i1[] f32[2]"

REFUSED_REGIONS: list[tuple[str, str, str, Properties, list[tuple[str, str | None]], str]] = [
    ("if", "", "", {}, [("", ""), ("", "")], "expected a condition, got no operand"),
    ("if", "i1[2] f32[2]", "f32[2]", {}, [SAME, SAME], "a condition is a 0-d i1, tensor<i1>; got tensor<2xi1>"),
    ("if", "i32[] f32[2]", "f32[2]", {}, [SAME, SAME], "a condition is a 0-d i1, tensor<i1>; got tensor<i32>"),
    ("if", "i1[] f32[2]", "f32[2]", {}, [SAME, ("f32[3]", "0")], "the region 'else' takes tensor<3xf32>; expected"),
    ("if", "i1[] f32[2]", "f32[2]", {}, [("", ""), SAME], "the region 'then' takes none; expected tensor<2xf32>"),
    ("if", "i1[] f32[2]", "f32[2]", {}, [SAME, ("f32[2]", "")], "yield the same types; got tensor<2xf32> and none"),
    ("if", "i1[] f32[2]", "f32[3]", {}, [SAME, SAME], "expected result types tensor<2xf32>, got tensor<3xf32>"),
    (
        "if",
        "i1[] f32[2]",
        "f32[2]",
        {},
        [SAME, ("f32[2]", None)],
        "lazytpu.neg terminates block in single-block region",
    ),
    ("while", LOOP, LOOP, {"carried": 3}, [GOES, STEP], "carried is 3; expected 0 <= carried <= 2 (the operands)"),
    (
        "while",
        LOOP,
        "i1[]",
        {"carried": 1},
        [GOES, STEP],
        "the types of the carried values, tensor<i1>; got tensor<i1>,",
    ),
    ("while", LOOP, LOOP, {"carried": 2}, [STEP, STEP], "the region 'while' yields one condition; got 2 values"),
    ("while", LOOP, LOOP, {"carried": 2}, [("i1[] f32[2]", "1"), STEP], "a condition is a 0-d i1, tensor<i1>; got"),
    ("while", LOOP, LOOP, {"carried": 2}, [GOES, ("f32[2] i1[]", "1 0")], "the region 'do' takes tensor<2xf32>,"),
    (
        "while",
        LOOP,
        LOOP,
        {"carried": 2},
        [GOES, ("i1[] f32[2]", None)],
        "lazytpu.neg terminates block in single-block region",
    ),
    ("while", LOOP, "i1[]", {"carried": 2}, [GOES, STEP], "expected result types tensor<i1>, tensor<2xf32>, got"),
]
"Invalid ops with regions: name, operands, results, properties, regions, message."
