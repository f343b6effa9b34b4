"""Invalid ops of indices, sorts and random bits."""

from __future__ import annotations

from tests.ir.refusals.making import Refusal

ROWS = {
    "offset_dims": (1,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "index_vector_dim": 1,
    "slice_sizes": (1, 3),
}
PUT = {
    "kind": "set",
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}

REFUSED: list[Refusal] = [
    (
        "gather",
        "f32[5,3] f32[4,1]",
        "f32[4,3]",
        ROWS,
        "expected indices of dtype i8, i16, i32, i64, ui8, ui16, ui32, ui64; got f32",
    ),
    ("gather", "f32[5,3] i64[4,2]", "f32[4,3]", ROWS, "have 2 components; start_index_map has 1"),
    ("gather", "f32[5,3] i64[4,1]", "f32[4,4]", ROWS | {"slice_sizes": (1, 4)}, "dimension 1 must be 0 to 3"),
    ("gather", "f32[5,3] i64[4,1]", "f32[4,3]", ROWS | {"slice_sizes": (2, 3)}, "dimension 0 must be 0 to 1"),
    ("gather", "f32[5,3] i64[4,1]", "f32[4,3]", ROWS | {"offset_dims": ()}, "offset_dims is []; expected 1 numbers"),
    (
        "gather",
        "f32[5,3] i64[4,1]",
        "f32[4,3]",
        ROWS | {"index_vector_dim": 3},
        "index_vector_dim is 3; expected 0 to 2",
    ),
    ("gather", "f32[5,3] i64[4,1]", "f32[3,4]", ROWS, "expected result types tensor<4x3xf32>"),
    ("scatter", "f32[5,3] i64[4] f32[4,3]", "f32[5,3]", PUT | {"kind": "sub"}, "kind must be one of set, add"),
    ("scatter", "f32[5,3] i64[4] bf16[4,3]", "f32[5,3]", PUT, "updates must have the dtype of the input"),
    ("scatter", "f32[5,3] i64[4] f32[2,3]", "f32[5,3]", PUT, "have batch shape [2]; the indices tensor<4xi64> [4]"),
    ("scatter", "f32[5,3] i64[4] f32[4,4]", "f32[5,3]", PUT, "are wider in dimension 1 than the input"),
    (
        "scatter",
        "f32[5,3] i64[5,4] f32[5,4]",
        "f32[5,3]",
        PUT
        | {
            "update_window_dims": (),
            "inserted_window_dims": (1,),
            "scatter_dims_to_operand_dims": (1,),
            "index_vector_dim": 2,
            "input_batching_dims": (0,),
            "scatter_indices_batching_dims": (1,),
        },
        "batching dims must have the same sizes; got [5] (operand) and [4] (indices)",
    ),
    ("dynamic_slice", "f32[5] i32[] i32[]", "f32[2]", {"sizes": (2,)}, "starts is [0, 0]; expected 1 numbers"),
    ("dynamic_slice", "f32[5] i32[]", "f32[6]", {"sizes": (6,)}, "has only 5 elements"),
    ("dynamic_slice", "f32[5] f32[]", "f32[2]", {"sizes": (2,)}, "expected starts of dtype i8"),
    (
        "dynamic_slice",
        "f32[5,5] i32[] i64[]",
        "f32[2,2]",
        {"sizes": (2, 2)},
        "starts must be 0-d integers of one dtype",
    ),
    ("dynamic_update_slice", "f32[5] f32[6] i32[]", "f32[5]", {}, "update tensor<6xf32> is wider than the operand"),
    ("dynamic_update_slice", "f32[5] f64[2] i32[]", "f32[5]", {}, "update must have the dtype of the operand"),
    ("dynamic_update_slice", "f32[5] f32[2,1] i32[]", "f32[5]", {}, "shape of update is [2, 1]; expected 1 numbers"),
    ("random_bits", "ui32[] ui64[]", "ui32[2]", {}, "seed must be tensor<ui64>; got tensor<ui32>"),
    ("random_bits", "ui64[] ui64[1]", "ui32[2]", {}, "offset must be tensor<ui64>; got tensor<1xui64>"),
    ("random_bits", "ui64[] ui64[]", "i32[2]", {}, "expected a result of dtype ui32, ui64; got i32"),
    ("random_bits", "ui64[] ui64[] ui32[3]", "ui32[2]", {}, "index must be ui32 with the shape of the result, [2]"),
    ("sort", "", "", {"dim": 0}, "sort needs at least one operand"),
    ("sort", "f32[2] f32[3]", "f32[2] f32[3]", {"dim": 0}, "operands must have the same shape"),
    ("sort", "c64[2]", "c64[2]", {"dim": 0}, "expected a first operand of dtype"),
    ("sort", "f32[2] i32[2]", "f32[2]", {"dim": 0}, "expected result types tensor<2xf32>, tensor<2xi32>, got"),
]
