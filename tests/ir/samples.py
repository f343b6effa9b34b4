"""One or more uses of every op, for tests of the whole dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from lazytpu.ir.attention import Attention
from lazytpu.ir.binary import BinaryOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.dialect import OPS
from lazytpu.ir.groups import MeshGroups
from lazytpu.ir.types import DTYPES, FLOATS8, tensor_type
from lazytpu.ir.unary import UnaryOp

Build = Callable[..., object]


class Sample:
    """Operand types, and the builder calls that use them."""

    def __init__(self, build: Build, *operands: str):
        self.build = build
        self.operands = operands

    def module(self) -> ModuleOp:
        """Return a module whose main returns its arguments, with the sample's ops before the return."""
        return module_of(self.build, *self.operands)


def parse_type(text: str):
    """The type of a text such as "f32[2,3]"."""
    dtype, _, sizes = text.partition("[")
    return tensor_type(dtype, [int(n) for n in sizes.rstrip("]").split(",") if n])


def module_of(build: Build, *operands: str) -> ModuleOp:
    types = [parse_type(text) for text in operands]
    block = Block(arg_types=types)
    build(Builder(block), *block.args)
    block.add_op(ReturnOp(*block.args))
    return ModuleOp([FuncOp("main", (types, types), Region(block))])


_ATTENTION = ("bf16[2,2,5,8]", "bf16[2,1,5,8]", "i1[5,5]", "f32[]", "i32[]", "f32[]", "f32[]", "ui64[]", "ui64[]")


def _unary(name: str) -> list[Sample]:
    return [Sample(lambda b, x: b.unary(name, x), f"{d}[2,3]") for d in sorted(OPS[name].DOMAIN)]


def _binary(name: str) -> list[Sample]:
    return [Sample(lambda b, x, y: b.binary(name, x, y), f"{d}[2]", f"{d}[2]") for d in sorted(OPS[name].DOMAIN)]


def _numbers(dtype: str) -> Sequence[complex]:
    if dtype == "i1":
        return [True, False]
    if dtype.startswith("ui"):
        return [0, 2 ** int(dtype[2:]) - 1]
    if dtype.startswith("i"):
        return [0, -1, -(2 ** (int(dtype[1:]) - 1)), 2 ** (int(dtype[1:]) - 1) - 1]
    floats = [0.0, -0.0, 1.0, 0.1, -2.5, 1e-5, 3.0e38, math.nan, math.inf, -math.inf]
    if dtype.startswith("c"):
        return [complex(re, im) for re in (0.1, -0.0, math.nan) for im in (math.inf, -0.0, 1 / 3)]
    if dtype == "f8e8m0fnu":
        return [1.0, 2.0**-127, 3.0e38, math.nan]  # it holds only powers of two
    return floats[:-2] if dtype in FLOATS8 - {"f8e5m2"} else floats


def _constants() -> list[Sample]:
    return [
        Sample(lambda b, dtype=dtype, value=value: b.constant(value, dtype, (2, 3)))
        for dtype in sorted(DTYPES)
        for value in _numbers(dtype)
    ]


def _tables() -> list[Sample]:
    tables = [Sample(lambda b, d=d: b.array(np.array(_numbers(d)), d)) for d in sorted(DTYPES - {"ui64"})]
    negative_nan = np.array([0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    return tables + [
        Sample(lambda b: b.array(np.array([0, 2**64 - 1], np.uint64), "ui64")),
        Sample(lambda b: b.array(np.arange(100).reshape(10, 10), "i16")),
        Sample(lambda b: b.array(negative_nan, "f32")),
        Sample(lambda b: b.array(np.zeros((0, 3)), "f32")),
    ]


def _starts(b: Builder, *values: int) -> list[SSAValue]:
    return [b.constant(value, "i32") for value in values]


_CONV = {"strides": (1, 2), "low": (1, 1), "high": (1, 0), "lhs_dilation": (1, 1), "rhs_dilation": (1, 2)}

_PAIRS = ((0, 1), (3, 2))
_COLUMNS = MeshGroups((16, 256), (0,))

_VECTORS = ("f32[4]", "f32[4]")


def _small(b: Builder, x: SSAValue) -> SSAValue:
    return b.compare("LT", b.reduce("add", x, (0,)), b.constant(9, "f32"))


SAMPLES: dict[str, list[Sample]] = {
    **{name: _unary(name) for name, op in OPS.items() if issubclass(op, UnaryOp)},
    **{name: _binary(name) for name, op in OPS.items() if issubclass(op, BinaryOp)},
    "constant": _constants(),
    "dense_constant": _tables(),
    "iota": [Sample(lambda b: b.iota("i64", (2, 3), 1)), Sample(lambda b: b.iota("bf16", (4,), 0))],
    "number": [Sample(lambda b, pack: b.number(pack, 3), "f32[4]")],
    "compare": [
        Sample(lambda b, x, y, d=d: b.compare(d, x, y), "f32[2]", "f32[2]")
        for d in ("EQ", "NE", "LT", "LE", "GT", "GE")
    ]
    + [Sample(lambda b, x: b.compare("NE", x, x), "c64[]"), Sample(lambda b, x: b.compare("LT", x, x), "i1[3]")],
    "select": [
        Sample(lambda b, p, x, y: b.select(p, x, y), "i1[2,3]", "c64[2,3]", "c64[2,3]"),
        Sample(lambda b, p, x, y: b.select(p, x, y), "i1[]", "f32[2]", "f32[2]"),
    ],
    "clamp": [
        Sample(lambda b, lo, x, hi: b.clamp(lo, x, hi), "f32[]", "f32[2]", "f32[2]"),
        Sample(lambda b, x: b.clamp(x, x, x), "i32[2]"),
    ],
    "convert": [Sample(lambda b, x, d=d: b.convert(x, d), "f32[2]") for d in sorted(DTYPES - {"f32"})],
    "bitcast_convert": [
        Sample(lambda b, x: b.bitcast_convert(x, "ui32"), "f32[2]"),
        Sample(lambda b, x: b.bitcast_convert(x, "ui8", (2, 8)), "f64[2]"),
        Sample(lambda b, x: b.bitcast_convert(x, "bf16"), "ui8[3,2]"),
    ],
    "broadcast_in_dim": [
        Sample(lambda b, x: b.broadcast_in_dim(x, (2, 4, 3), (0, 2)), "f32[2,1]"),
        Sample(lambda b, x: b.broadcast_to(x, (0, 2)), "f32[]"),
    ],
    "reshape": [Sample(lambda b, x: b.reshape(x, (3, 2)), "f32[6]"), Sample(lambda b, x: b.reshape(x, ()), "i1[1,1]")],
    "transpose": [Sample(lambda b, x: b.transpose(x, (2, 0, 1)), "f32[2,3,4]")],
    "slice": [Sample(lambda b, x: b.slice(x, (1, 0), (4, 6), (2, 1)), "f32[5,6]")],
    "pad": [Sample(lambda b, x, v: b.pad(x, v, (1, -1), (0, 2), (0, 1)), "bf16[2,3]", "bf16[]")],
    "concatenate": [Sample(lambda b, x, y: b.concatenate([x, y, x], 1), "f32[2,3]", "f32[2,0]")],
    "reverse": [Sample(lambda b, x: b.reverse(x, (1,)), "f32[2,3]")],
    "barrier": [Sample(lambda b, x: b.barrier(x), "f32[2,3]")],
    "reduce": [
        Sample(lambda b, x, k=k: b.reduce(k, x, (0, 2)), "i32[2,3,4]")
        for k in ("add", "mul", "max", "min", "and", "or")
    ]
    + [Sample(lambda b, x: b.reduce("and", x, (0,)), "i1[3]")],
    "argreduce": [Sample(lambda b, x, k=k: b.argreduce(k, x, 1), "f32[2,3]") for k in ("max", "min")],
    "reduce_window": [
        Sample(lambda b, x: b.reduce_window("max", x, (1, 3), (1, 2), (0, 1), (0, 1)), "f32[2,8]"),
        Sample(lambda b, x: b.reduce_window("add", x, (2,), (1,), (0,), (-1,), (2,), (3,)), "f32[8]"),
    ],
    "cumulative": [Sample(lambda b, x, k=k: b.cumulative(k, x, 0), "f32[4]") for k in ("add", "mul", "max", "min")],
    "dot_general": [
        Sample(lambda b, x, y: b.dot_general(x, y, (), (), (1,), (0,)), "f32[2,3]", "f32[3,4]"),
        Sample(
            lambda b, x, y: b.dot_general(x, y, (0,), (1,), (2,), (0,), precision="default", dtype="f32"),
            "bf16[5,2,3]",
            "bf16[3,5]",
        ),
    ],
    "convolution": [
        Sample(
            lambda b, x, w: b.convolution(x, w, **_CONV, layout="NC01,OI01,NC01", window_reversal=(0, 1)),
            "f32[2,3,8,8]",
            "f32[4,3,3,3]",
        ),
        Sample(
            lambda b, x, w: b.convolution(
                x, w, **_CONV, layout="N01C,01IO,N01C", feature_groups=3, precision="high", dtype="f32"
            ),
            "bf16[2,8,8,3]",
            "bf16[3,3,1,6]",
        ),
    ],
    "gather": [
        Sample(
            lambda b, x, i: b.gather(
                x,
                i,
                offset_dims=(1,),
                collapsed_slice_dims=(0,),
                start_index_map=(0,),
                index_vector_dim=1,
                slice_sizes=(1, 3),
            ),
            "f32[5,3]",
            "i64[4,1]",
        ),
        Sample(
            lambda b, x, i: b.gather(
                x,
                i,
                offset_dims=(),
                collapsed_slice_dims=(1,),
                start_index_map=(1,),
                index_vector_dim=2,
                slice_sizes=(1, 1),
                operand_batching_dims=(0,),
                start_indices_batching_dims=(0,),
                indices_are_sorted=True,
            ),
            "f32[5,3]",
            "i32[5,4]",
        ),
    ],
    "scatter": [
        Sample(
            lambda b, x, i, u, k=k: b.scatter(
                x,
                i,
                u,
                kind=k,
                update_window_dims=(1,),
                inserted_window_dims=(0,),
                scatter_dims_to_operand_dims=(0,),
                index_vector_dim=1,
                unique_indices=k == "set",
                indices_are_sorted=k == "add",
            ),
            "f32[5,3]",
            "i64[4]",
            "f32[4,3]",
        )
        for k in ("set", "add", "mul", "max", "min")
    ]
    + [
        Sample(
            lambda b, x, i, u: b.scatter(
                x,
                i,
                u,
                kind="add",
                update_window_dims=(),
                inserted_window_dims=(1,),
                scatter_dims_to_operand_dims=(1,),
                index_vector_dim=2,
                input_batching_dims=(0,),
                scatter_indices_batching_dims=(0,),
            ),
            "f32[5,3]",
            "i64[5,4]",
            "f32[5,4]",
        )
    ],
    "dynamic_slice": [Sample(lambda b, x: b.dynamic_slice(x, _starts(b, 1, 0), (2, 2)), "f32[5,3]")],
    "dynamic_update_slice": [
        Sample(lambda b, x, u: b.dynamic_update_slice(x, u, _starts(b, 1, 0)), "f32[5,3]", "f32[2,2]")
    ],
    "random_bits": [
        *(Sample(lambda b, s, o, d=d: b.random_bits(s, o, (2, 3), d), "ui64[]", "ui64[]") for d in ("ui32", "ui64")),
        Sample(lambda b, s, o, i: b.random_bits(s, o, (2, 3), index=i), "ui64[]", "ui64[]", "ui32[2,3]"),
    ],
    "sort": [
        Sample(lambda b, x: b.sort([x], 0), "f32[4]"),
        Sample(lambda b, x, y: b.sort([x, y], 1, descending=True), "f32[2,3]", "i64[2,3]"),
    ],
    "attention": [
        Sample(lambda b, q, k, v: b.attention(Attention(q, k, v)), "f32[2,4,3,8]", "f32[2,2,5,8]", "f32[2,2,5,6]"),
        Sample(
            lambda b, q, k, mask, scale, i, p, by, s, o: b.attention(
                Attention(q, k, k, mask, scale, i, (p, by, s, o), True, 2, precision="default", hidden="mean")
            ),
            *_ATTENTION,
        ),
    ],
    "attention_backward": [
        Sample(
            lambda b, q, k, bias: b.attention_backward(q, Attention(q, k, k, bias, scale=0.3), of_bias=True),
            "f64[2,2,3,8]",
            "f64[2,2,3,8]",
            "f64[2,1,3,3]",
        ),
        Sample(
            lambda b, q, k, mask, scale, i, p, by, s, o: b.attention_backward(
                q, Attention(q, k, k, mask, scale, i, (p, by, s, o), hidden="nan", added=True)
            ),
            *_ATTENTION,
        ),
    ],
    "template": [
        Sample(lambda b, x: b.template("fft", [x], [("c64", (4,))]), "f32[4]"),
        Sample(
            lambda b, x, y: b.template(
                "qr.thin",
                [x, y],
                [("f32", (2, 2)), ("i64", ())],
                name="inf",
                flag=True,
                one=1,
                eps=1e-5,
                low=-math.inf,
                nan=math.nan,
                zero=-0.0,
                dims=(1, (), (2.5, 'a"b', False)),
            ),
            "f32[2,2]",
            "i1[]",
        ),
        Sample(lambda b: b.template("seedless", [], [])),
    ],
    "jax_call": [
        Sample(
            lambda b, x, y: b.jax_call("softmax_0123456789abcdef", [x, y], [("f32", (2, 3)), ("i64", ())]),
            "f32[2,3]",
            "bf16[]",
        ),
        Sample(lambda b: b.jax_call("table_0123456789abcdef", [], [("f32", (4,))])),
        Sample(
            lambda b, x, y: b.jax_call("outer_0123456789abcdef", [x, y], [("f32", (2, 3))], "i, j -> i j"),
            "f32[2]",
            "f32[3]",
        ),
    ],
    "group_rank": [Sample(lambda b: b.group_rank(_PAIRS)), Sample(lambda b: b.group_rank(_COLUMNS))],
    "all_reduce": [
        Sample(lambda b, x: b.all_reduce("max", [x], _PAIRS), "f32[2,3]"),
        Sample(lambda b, x, y: b.all_reduce("add", [x, y], ((0, 1, 2),)), "f32[2,3]", "bf16[]"),
        Sample(lambda b, x: b.all_reduce("add", [x], _COLUMNS), "f32[2,3]"),
    ],
    "all_gather": [Sample(lambda b, x: b.all_gather(x, 1, _PAIRS), "f32[2,3]")],
    "reduce_scatter": [Sample(lambda b, x: b.reduce_scatter("add", x, 0, _PAIRS), "f32[2,3]")],
    "all_to_all": [Sample(lambda b, x: b.all_to_all(x, 0, 1, _PAIRS), "f32[2,3]")],
    "collective_permute": [Sample(lambda b, x: b.collective_permute(x, _PAIRS), "f32[2,3]")],
    "if": [
        Sample(lambda b, c, x, y: b.if_(c, lambda b, x: b.neg(x), lambda b, x: b.add(x, y), [x]), "i1[]", *_VECTORS),
        Sample(lambda b, c: b.if_(c, lambda b: (), lambda b: ()), "i1[]"),
    ],
    "while": [
        Sample(lambda b, x, y: b.while_([x], _small, lambda b, x: b.add(x, y)), *_VECTORS),
        Sample(
            lambda b, x, y: b.repeat(5, [x], lambda b, i, x: b.repeat(2, [x], lambda b, j, x: b.mul(x, y))), *_VECTORS
        ),
        Sample(lambda b: b.while_([], lambda b: b.constant(False, "i1"), lambda b: ())),
    ],
}
