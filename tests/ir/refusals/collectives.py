"""Invalid collectives."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr

from lazytpu.ir.groups import lists_attr
from lazytpu.ir.types import int_array
from tests.ir.refusals.making import Refusal

GROUPS = {"groups": lists_attr(((0, 1), (2, 3)))}
MESH = ArrayAttr([DictionaryAttr({"mesh": int_array((2, 2))})])
ALL_REDUCE = GROUPS | {"kind": "add"}

REFUSED: list[Refusal] = [
    ("group_rank", "", "i32[]", {"groups": lists_attr(())}, "expected at least one, all of one size"),
    ("group_rank", "", "i32[]", {"groups": lists_attr(((0, 1), (2,)))}, "groups are [[0, 1], [2]]; expected at least"),
    ("group_rank", "", "i32[]", {"groups": lists_attr(((0, 2),))}, "expected each device from 0 to 1 once"),
    ("group_rank", "", "i32[]", {"groups": MESH}, "expected groups along the axes of a mesh, got"),
    ("group_rank", "", "i32[]", {"groups": (0, 1)}, "expected ArrayAttr attribute"),
    ("group_rank", "", "i64[]", GROUPS, "expected result types tensor<i32>, got tensor<i64>"),
    ("all_reduce", "", "", ALL_REDUCE, "all_reduce needs at least one operand"),
    ("all_reduce", "i1[2]", "i1[2]", ALL_REDUCE, "an operand of a reduction by add of dtype"),
    ("all_reduce", "f32[2]", "f32[2]", ALL_REDUCE | {"kind": "mean"}, "kind must be one of add, mul, max, min"),
    ("all_reduce", "f32[2] f32[3]", "f32[2]", ALL_REDUCE, "expected result types tensor<2xf32>, tensor<3xf32>, got"),
    ("all_gather", "f32[2]", "f32[4]", GROUPS | {"dim": 1}, "dim is 1; expected 0 <= dim < 1"),
    ("all_gather", "f32[2]", "f32[2]", GROUPS | {"dim": 0}, "expected result types tensor<4xf32>"),
    ("reduce_scatter", "f32[3]", "f32[1]", ALL_REDUCE | {"dim": 0}, "into 2 equal parts"),
    ("reduce_scatter", "c64[2]", "c64[1]", ALL_REDUCE | {"dim": 0, "kind": "max"}, "; got c64"),
    ("all_to_all", "f32[2,3]", "f32[2,3]", GROUPS | {"split_dim": 1, "concat_dim": 0}, "into 2 equal parts"),
    ("all_to_all", "f32[2,3]", "f32[1,6]", GROUPS | {"split_dim": 0, "concat_dim": 2}, "concat_dim is 2; expected"),
    ("collective_permute", "f32[2]", "f32[2]", {"pairs": lists_attr(())}, "expected at least one [source, target]"),
    ("collective_permute", "f32[2]", "f32[2]", {"pairs": lists_attr(((0, 1, 2),))}, "expected at least one [source"),
    (
        "collective_permute",
        "f32[2]",
        "f32[2]",
        {"pairs": lists_attr(((0, 1), (2, 1)))},
        "each device as a target at most once",
    ),
]
