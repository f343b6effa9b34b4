"""Invalid attention ops."""

from __future__ import annotations

from tests.ir.refusals.making import Refusal

EXACT = {"precision": "highest"}
HEADS = "f32[2,4,3,8]"

REFUSED: list[Refusal] = [
    (
        "attention",
        f"{HEADS} f32[2,2,5,8]",
        HEADS,
        EXACT,
        "expected 3 operands from the query on, for extra = []; got 2",
    ),
    ("attention", f"{HEADS} {HEADS} f32[4,3,8]", HEADS, EXACT, "query, key and value must be 4-d"),
    ("attention", f"{HEADS} {HEADS} bf16[2,4,3,8]", HEADS, EXACT, "and of one dtype; got"),
    ("attention", "i32[1,1,1,1] " * 3, "i32[1,1,1,1]", EXACT, "expected a query of dtype f16, bf16, f32, f64; got i32"),
    ("attention", f"{HEADS} f32[2,4,3,7] {HEADS}", HEADS, EXACT, "do not match"),
    ("attention", f"{HEADS} f32[2,3,5,8] f32[2,3,5,8]", HEADS, EXACT, "(4) are not a multiple of those of the key (3)"),
    ("attention", f"{HEADS} {HEADS} {HEADS} f32[2,3]", HEADS, EXACT | {"extra": "bias"}, "broadcast to the scores"),
    ("attention", f"{HEADS} {HEADS} {HEADS} i32[3,3]", HEADS, EXACT | {"extra": "bias"}, "bias must be i1 or a float"),
    ("attention", f"{HEADS} {HEADS} {HEADS} f32[1]", HEADS, EXACT | {"extra": "scale"}, "a number or a 0-d operand"),
    (
        "attention",
        f"{HEADS} {HEADS} {HEADS}",
        HEADS,
        EXACT | {"extra": "mask"},
        "extra is 'mask'; expected names from bias",
    ),
    ("attention", f"{HEADS} {HEADS} {HEADS}", HEADS, EXACT | {"window": -1}, "window is -1"),
    (
        "attention",
        f"{HEADS} {HEADS} {HEADS} f64[] f32[] ui64[] ui64[]",
        HEADS,
        EXACT | {"extra": "dropout"},
        "the keep probability of dropout must be tensor<f32>",
    ),
    ("attention", f"{HEADS} {HEADS} {HEADS}", "f32[2,4,3,7]", EXACT, "expected result types tensor<2x4x3x8xf32>"),
    ("attention_backward", "", "", EXACT, "expected the gradient of the output as the first operand"),
    ("attention_backward", f"f32[1] {HEADS} {HEADS} {HEADS}", "", EXACT, "expected the type of the output"),
    (
        "attention_backward",
        f"{HEADS} {HEADS} {HEADS} {HEADS}",
        f"{HEADS} {HEADS} {HEADS}",
        EXACT | {"of_bias": True},
        "of_bias asks for the gradient of a float bias, but there is none",
    ),
]
