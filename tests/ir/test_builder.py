"""The builder: the ops it builds, omits and rejects, and its insertion point."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, DenseConstantOp, number_of
from lazytpu.ir.template import TemplateOp, from_attribute
from lazytpu.ir.types import dtype_of, shape_of, tensor_type
from tests.ir.samples import parse_type

LINE = FileLineColLoc(StringAttr("train.py"), IntAttr(41), IntAttr(0))


def start(*operands: str) -> tuple[Builder, list[SSAValue]]:
    block = Block(arg_types=[parse_type(t) for t in operands])
    return Builder(block), list(block.args)


def names(b: Builder) -> list[str]:
    return [op.name.removeprefix("lazytpu.") for op in b.block.ops]


def described(value: SSAValue) -> tuple[str, tuple[int, ...]]:
    return dtype_of(value), shape_of(value)


def test_ops_go_to_the_end_or_before_an_op():
    b, (x,) = start("f32[2]")
    b.exp(x)
    b.block.add_op(ReturnOp(x))
    before = Builder(b.block, before=b.block.last_op)
    before.neg(x)
    before.log(x)
    assert names(b) == ["exp", "neg", "log", "func.return"]


def test_ops_carry_the_innermost_location():
    b, (x,) = start("f32[2]")
    inner = FileLineColLoc(StringAttr("model.py"), IntAttr(7), IntAttr(0))
    b.exp(x)
    with b.at(LINE):
        b.neg(x)
        with b.at(inner):
            b.log(x)
        b.abs(x)
    with pytest.raises(ZeroDivisionError), b.at(LINE):
        raise ZeroDivisionError
    b.sqrt(x)
    assert [op.location for op in b.block.ops] == [UNKNOWN_LOC, LINE, inner, LINE, UNKNOWN_LOC]


def test_identities_build_no_op():
    b, (x, v) = start("f32[2,3]", "f32[]")
    assert b.convert(x, "f32") is x
    assert b.bitcast_convert(x, "f32", (2, 3)) is x
    assert b.broadcast_to(x, (2, 3)) is x
    assert b.reshape(x, [2, 3]) is x
    assert b.transpose(x, [0, 1]) is x
    assert b.slice(x, (0, 0), (2, 3)) is x
    assert b.slice(x, (0, 0), (2, 3), (1, 1)) is x
    assert b.pad(x, v, (0, 0), (0, 0)) is x
    assert b.concatenate([x], 1) is x
    assert b.reverse(x, ()) is x
    assert b.reduce("add", x, ()) is x
    assert names(b) == []


def test_identities_are_checked():
    b, (x, v) = start("f32[2,3]", "f64[]")
    with pytest.raises(ValueError, match="padding value"):
        b.pad(x, v, (0, 0), (0, 0))
    with pytest.raises(ValueError, match="dim is 2"):
        b.concatenate([x], 2)
    with pytest.raises(ValueError, match="kind must be one of"):
        b.reduce("sum", x, ())
    with pytest.raises(ValueError, match="slice 0:4:1"):
        b.slice(x, (0, 0), (2, 4))


def test_strided_slice_that_keeps_the_shape_is_built():
    b, (x,) = start("f32[1]")
    assert b.slice(x, (0,), (1,), (5,)) is x


def test_broadcast_to_aligns_at_the_right():
    b, (x,) = start("f32[3,1]")
    assert described(b.broadcast_to(x, (2, 3, 4))) == ("f32", (2, 3, 4))
    with pytest.raises(ValueError, match="cannot broadcast"):
        b.broadcast_to(x, (2, 2, 4))
    with pytest.raises(ValueError, match="dims is -1"):
        b.broadcast_to(x, (3,))


def test_reduce_keeps_dims_on_request():
    b, (x,) = start("f32[2,3,4]")
    assert shape_of(b.reduce("add", x, (0, 2))) == (3,)
    assert shape_of(b.reduce("add", x, (0, 2), keepdim=True)) == (1, 3, 1)
    assert b.reduce("max", x, (), keepdim=True) is x


def test_contractions_take_a_result_dtype():
    b, (x, w) = start("bf16[2,3]", "bf16[3,4]")
    assert described(b.dot_general(x, w, (), (), (1,), (0,))) == ("bf16", (2, 4))
    assert described(b.dot_general(x, w, (), (), (1,), (0,), dtype="f32")) == ("f32", (2, 4))
    with pytest.raises(ValueError, match="precision must be one of default, high, highest; got 'medium'"):
        b.dot_general(x, w, (), (), (1,), (0,), precision="medium")


def test_shorthands():
    b, (x, p) = start("f32[2]", "i1[2]")
    for method in ("add", "sub", "mul", "div", "max", "min"):
        assert described(getattr(b, method)(x, x)) == ("f32", (2,))
    for method in ("neg", "exp", "log", "sqrt", "rsqrt", "abs"):
        assert described(getattr(b, method)(x)) == ("f32", (2,))
    assert described(b.and_(b.or_(p, p), b.not_(p))) == ("i1", (2,))
    assert names(b) == [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "neg",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "abs",
        "or",
        "not",
        "and",
    ]


def test_elementwise_ops_by_name():
    b, (x, y) = start("f32[2]", "f64[2]")
    with pytest.raises(ValueError, match=r"operands must have the same type; got tensor<2xf32> and tensor<2xf64>"):
        b.add(x, y)
    with pytest.raises(ValueError, match=r"'add' is not an elementwise op of one operand; expected one of abs, acos"):
        b.unary("add", x)
    with pytest.raises(ValueError, match=r"'exp' is not an elementwise op of two operands; expected one of add, and"):
        b.binary("exp", x, x)
    with pytest.raises(ValueError, match=r"expected an operand of dtype .*; got f32"):
        b.not_(x)
    with pytest.raises(ValueError, match=r"direction must be one of EQ, NE, LT, LE, GT, GE; got 'lt'"):
        b.compare("lt", x, x)
    assert names(b) == []


@pytest.mark.parametrize("size", [1, 3])
def test_an_array_of_equal_bits_is_a_splat(size: int):
    b, _ = start()
    for array, dtype, value in (
        (np.full((2, size), -0.0), "f32", -0.0),
        (np.full(size, 2**64 - 1, np.uint64), "ui64", 2**64 - 1),
        (np.full(size, -1), "i8", -1),
        (np.full(size, True), "i1", True),
        (np.full(size, 1 - 2j), "c64", 1 - 2j),
        (np.full(size, 1.5, ml_dtypes.bfloat16), "bf16", 1.5),
    ):
        splat = b.array(array, dtype)
        op = splat.owner
        assert isinstance(op, ConstantOp)
        assert described(splat) == (dtype, array.shape)
        number = number_of(op.value)
        assert (number, math.copysign(1, getattr(number, "real", number))) == (value, math.copysign(1, np.real(value)))


def test_arrays_keep_their_bits():
    b, _ = start()
    tables = [
        (np.array([0.0, -0.0], np.float32), "f32"),
        (np.array([[1, 2], [3, 4]], np.int16).T, "i16"),
        (np.array([[True], [False]]), "i1"),
        (np.zeros((0, 3), np.float64), "f64"),
        (np.array([0x7F800001, 0x7F800001], np.uint32).view(np.float32), "f32"),
        (np.arange(3).astype(">i4"), "i32"),
    ]
    for array, dtype in tables:
        op = b.array(array, dtype).owner
        assert isinstance(op, DenseConstantOp)
        assert bytes.fromhex(op.data.data) == array.astype(array.dtype.newbyteorder("<")).tobytes()
        op.verify()


def test_arrays_are_rounded_to_the_dtype():
    b, _ = start()
    op = b.array([0.1, 1e300, -1e300], "f16").owner
    assert isinstance(op, DenseConstantOp)
    expected = np.array([0.1, np.inf, -np.inf], np.float16)
    assert bytes.fromhex(op.data.data) == expected.tobytes()


def test_checks_are_collected_as_one_bool_each():
    b, (x, ok) = start("f32[2,3]", "i1[]")
    b.check(b.compare("LT", x, x), "index out of range in self")
    b.check(ok, "another", "RuntimeError")
    (first, message, error), (second, _, second_error) = b.checks
    assert described(first) == ("i1", ())
    assert (message, error) == ("index out of range in self", "IndexError")
    assert second is ok and second_error == "RuntimeError"
    assert names(b) == ["compare", "reduce"]
    with pytest.raises(ValueError, match=r"a check must be i1; got tensor<2x3xf32>"):
        b.check(x, "no truth")


def test_scalars_materialize_themselves():
    class Seven:
        def materialize(self, b: Builder, dtype: str, /) -> SSAValue:
            return b.constant(7, dtype)

    b, _ = start()
    assert described(b.scalar(Seven(), "bf16")) == ("bf16", ())
    assert b.out == []
    assert b.precision == "highest"


def test_templates_keep_their_parameters():
    b, (x,) = start("f32[4]")
    params = {"name": "a", "n": -3, "flag": True, "eps": 1e-5, "dims": (1, (2.0, "b"), ())}
    (result,) = b.template("fft", [x], [("c64", (3,))], **params)
    op = result.owner
    assert isinstance(op, TemplateOp)
    assert op.template_name.data == "fft"
    assert {key: from_attribute(value) for key, value in op.params.data.items()} == params
    assert type(from_attribute(op.params.data["flag"])) is bool
    assert described(result) == ("c64", (3,))
    with pytest.raises(ValueError, match=r"a template parameter must be a bool, int, .*; got None"):
        b.template("fft", [x], [], dims=None)  # pyright: ignore[reportArgumentType]


def test_several_results():
    b, (x, i) = start("f32[2,3]", "i32[2,3]")
    values, indices = b.argreduce("max", x, 0)
    assert [described(values), described(indices)] == [("f32", (3,)), ("i64", (3,))]
    assert [described(v) for v in b.sort([x, i], 1)] == [("f32", (2, 3)), ("i32", (2, 3))]


def test_refusals_leave_the_block_unchanged():
    b, (x, v, i) = start("f32[2,3]", "f32[]", "i32[]")
    calls = [
        lambda: b.constant(0.5, "i32"),
        lambda: b.iota("f32", (2,), 1),
        lambda: b.number(x, 0),
        lambda: b.select(x, x, x),
        lambda: b.clamp(x, x, i),
        lambda: b.convert(x, "float"),
        lambda: b.bitcast_convert(x, "f64"),
        lambda: b.bitcast_convert(x, "i32", (6,)),
        lambda: b.broadcast_in_dim(x, (2,), (0, 1)),
        lambda: b.reshape(x, (4,)),
        lambda: b.transpose(x, (0,)),
        lambda: b.concatenate([], 0),
        lambda: b.reverse(x, (2,)),
        lambda: b.argreduce("add", x, 0),
        lambda: b.cumulative("add", v, 0),
        lambda: b.reduce_window("add", x, (1,), (1,), (0,), (0,)),
        lambda: b.dynamic_slice(x, [i], (1, 1)),
        lambda: b.dynamic_update_slice(x, v, [i, i]),
        lambda: b.random_bits(i, i, (2,)),
        lambda: b.sort([], 0),
        lambda: b.constant(0, "f32", (-1,)),
    ]
    for call in calls:
        with pytest.raises(ValueError):
            call()
    assert names(b) == []
    assert tensor_type("f32", (2, 3)) is x.type
