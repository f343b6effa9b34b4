"""Invalid ops of every family, and what the verifier says about them."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    f32,
    i1,
    i32,
)
from xdsl.ir import Attribute, Block, Region

from lazytpu.ir.collectives import lists_attr
from lazytpu.ir.control import YieldOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.literals import scalar
from lazytpu.ir.types import int_array
from tests.ir.samples import parse_type

Properties = dict[str, object]
_KEY = "softmax_0123456789abcdef"


def prop(value: object) -> Attribute:
    match value:
        case Attribute():
            return value
        case bool():
            return IntegerAttr(int(value), i1)
        case int():
            return IntegerAttr(value, 64)
        case str():
            return StringAttr(value)
        case tuple() | list():
            return int_array(value)
    raise TypeError(value)


def region(arguments: str, yields: str | None) -> Region:
    """A region that takes values of these types and yields arguments of it, by number: "f32[2] i1[]", "1 0"."""
    block = Block(arg_types=[parse_type(t) for t in arguments.split()])
    if yields is None:
        block.add_op(OPS["neg"].create(operands=[block.args[0]], result_types=[block.args[0].type]))
    else:
        block.add_op(YieldOp.create(operands=[block.args[int(number)] for number in yields.split()]))
    return Region(block)


def make(name: str, operands: str, results: str, properties: Properties, *regions: tuple[str, str | None]):
    """An op from types such as "f32[2] f32[3]", unverified."""
    types = [parse_type(t) for t in operands.split()]
    return OPS[name].create(
        operands=Block(arg_types=types).args,
        result_types=[parse_type(t) for t in results.split()],
        properties={key: prop(value) for key, value in properties.items()},
        regions=[region(*texts) for texts in regions],
    )


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
EXACT = {"precision": "highest"}
HEADS = "f32[2,4,3,8]"
WINDOW = {
    "kind": "add",
    "window": (2,),
    "strides": (1,),
    "low": (0,),
    "high": (0,),
    "base_dilations": (1,),
    "window_dilations": (1,),
}

GROUPS = {"groups": lists_attr(((0, 1), (2, 3)))}
ALL_REDUCE = GROUPS | {"kind": "add"}

# name, operand types, result types, properties, part of the message
REFUSED: list[tuple[str, str, str, Properties, str]] = [
    # constants
    ("constant", "", "f32[2]", {"value": scalar(1, "i32")}, "is not a number of dtype f32"),
    ("constant", "", "f32[2]", {}, "property 'value' expected"),
    ("dense_constant", "", "f32[2]", {"data": "00"}, "tensor<2xf32> needs 16 hexadecimal digits; got 2"),
    ("dense_constant", "", "i8[1]", {"data": "zz"}, "non-hexadecimal"),
    ("iota", "", "i32[2]", {"dim": 1}, "dim is 1; expected 0 <= dim < 1 (the rank)"),
    ("iota", "", "i1[2]", {"dim": 0}, "expected a result of dtype f16, bf16, f32"),
    ("number", "f32[2,2]", "f32[]", {"index": 0}, "expected a 1-D pack with more than 0 numbers; got tensor<2x2xf32>"),
    ("number", "f32[2]", "f32[]", {"index": 2}, "expected a 1-D pack with more than 2 numbers; got tensor<2xf32>"),
    ("number", "f32[2]", "f64[]", {"index": 1}, "expected result types tensor<f32>, got tensor<f64>"),
    # elementwise
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
    # shape
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
    # reductions
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
    # contractions
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
    # indexing
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
    # the others
    ("random_bits", "ui32[] ui64[]", "ui32[2]", {}, "seed must be tensor<ui64>; got tensor<ui32>"),
    ("random_bits", "ui64[] ui64[1]", "ui32[2]", {}, "offset must be tensor<ui64>; got tensor<1xui64>"),
    ("random_bits", "ui64[] ui64[]", "i32[2]", {}, "expected a result of dtype ui32, ui64; got i32"),
    # attention
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
    ("sort", "", "", {"dim": 0}, "sort needs at least one operand"),
    ("sort", "f32[2] f32[3]", "f32[2] f32[3]", {"dim": 0}, "operands must have the same shape"),
    ("sort", "c64[2]", "c64[2]", {"dim": 0}, "expected a first operand of dtype"),
    ("sort", "f32[2] i32[2]", "f32[2]", {"dim": 0}, "expected result types tensor<2xf32>, tensor<2xi32>, got"),
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
    ("jax_call", "f32[2]", "f32[2]", {"body": _KEY, "sharding": "a"}, "expected operands -> results"),
    ("jax_call", "f32[2]", "f32[2]", {"body": _KEY, "sharding": "a b -> a"}, "names 2 dimensions of operand 0"),
    ("jax_call", "f32[2]", "f32[3]", {"body": _KEY, "sharding": "a -> a"}, "of sizes 2 and 3 alike"),
    # collectives
    ("group_rank", "", "i32[]", {"groups": lists_attr(())}, "expected at least one, all of one size"),
    ("group_rank", "", "i32[]", {"groups": lists_attr(((0, 1), (2,)))}, "groups are [[0, 1], [2]]; expected at least"),
    ("group_rank", "", "i32[]", {"groups": lists_attr(((0, 2),))}, "expected each device from 0 to 1 once"),
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

SAME = ("f32[2]", "0")
GOES, STEP = ("i1[] f32[2]", "0"), ("i1[] f32[2]", "0 1")
LOOP = "i1[] f32[2]"

REFUSED_REGIONS = [
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
