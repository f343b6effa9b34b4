"""Invalid templates and kernels."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, StringAttr, f32, i32

from tests.ir.refusals.making import Refusal

KEY = "softmax_0123456789abcdef"

REFUSED: list[Refusal] = [
    (
        "template",
        "",
        "",
        {"name": "fft", "params": DictionaryAttr({"n": IntegerAttr(1, i32)})},
        "parameter n is 1 : i32",
    ),
    ("template", "", "", {"name": "fft", "params": DictionaryAttr({"n": StringAttr("a")}), "x": 1}, "property 'x'"),
    ("template", "", "", {"name": "fft", "params": DictionaryAttr({"n": FloatAttr(1.0, f32)})}, "parameter n is"),
    ("jax_call", "f32[2]", "f32[2]", {"body": "softmax"}, "expected a name, _, and 16 hexadecimal digits"),
    ("jax_call", "f32[2]", "f32[2]", {"body": KEY, "sharding": "a"}, "expected operands -> results"),
    ("jax_call", "f32[2]", "f32[2]", {"body": KEY, "sharding": "a b -> a"}, "names 2 dimensions of operand 0"),
    ("jax_call", "f32[2]", "f32[3]", {"body": KEY, "sharding": "a -> a"}, "of sizes 2 and 3 alike"),
]
