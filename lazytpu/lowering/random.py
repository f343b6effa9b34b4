"""Random bits: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

Bits depend only on the seed, the offset and the row-major index of each element; not on tiling, sharding, or the rest
of the program. ui64 elements are the two output words (first word high), ui32 elements their xor, as in jax with
`jax_threefry_partitionable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lazytpu.ir import random as ops
from lazytpu.ir.types import dtype_of, numel, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.mlir import func, ir
from lazytpu.runtime.mlir import stablehlo as hlo

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

Words: TypeAlias = "tuple[ir.Value, ir.Value]"
"""Two ui32 tensors: the high and low halves of 64 bits."""


@lowers(ops.RandomBitsOp)
def random_bits(
    e: Emission, op: ops.RandomBitsOp, seed: ir.Value, offset: ir.Value, *index: ir.Value
) -> list[ir.Value]:
    """A call of a private function that all random_bits of this shape and dtype share."""
    dtype, shape = dtype_of(op.result_type()), shape_of(op.result_type())
    symbol = e.function(
        ("random_bits", dtype, shape, len(index)),
        "_".join(["random_bits", *["at"][: len(index)], dtype, *map(str, shape)]),
        lambda name: _define(e, name, dtype, shape, bool(index)),
    )
    return e.call(symbol, [seed, offset, *index], [e.result(op)])


def _define(e: Emission, name: str, dtype: str, shape: tuple[int, ...], indexed: bool) -> None:
    seed, result = e.tensor("ui64"), e.tensor(dtype, shape)
    arguments = [seed, seed, e.tensor("ui32", shape)] if indexed else [seed, seed]
    function = func.FuncOp(name, ir.FunctionType.get(arguments, [result]), visibility="private")
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        key = _key(e, block.arguments[0], block.arguments[1])
        index = (e.constant(0, "ui32", shape), block.arguments[2]) if indexed else _row_major_index(e, shape)
        high, low = threefry(e, key, index, shape)
        if dtype == "ui64":
            wide = [e.convert(word, "ui64") for word in (high, low)]
            bits = e.binary("or", e.binary("shift_left", wide[0], e.constant(32, "ui64", shape)), wide[1])
        else:
            bits = e.binary("xor", high, low)
        func.ReturnOp([bits])


def _key(e: Emission, seed: ir.Value, offset: ir.Value) -> Words:
    """The 0-d key of a stream. It is computed as one element of two, the other being the key of the next offset: on a
    TPU, XLA does not fuse scalars, and would schedule each of these hundred ops on the scalar unit (three dropouts: 389
    scheduled ops; in this way 43)."""
    (one, two), counter = _halves(e, seed, ()), _halves(e, offset, ())
    high, low = (hlo.broadcast_in_dim(e.tensor("ui32", (2,)), word, []) for word in counter)
    low = e.binary("add", low, hlo.iota(e.tensor("ui32", (2,)), 0))
    words = threefry(e, (one, two), (high, low), (2,))
    high, low = (hlo.reshape(e.tensor("ui32"), hlo.slice(word, [0], [1], [1])) for word in words)
    return high, low


def threefry(e: Emission, key: Words, counter: Words, shape: Sequence[int]) -> Words:
    """Threefry-2x32 of a 0-d key and a counter of shape `shape`.

    The 20 rounds are unrolled: XLA fuses them with the users of the bits, and one million masked elements take 1.5 ms
    on XLA:CPU. As a loop (jax's choice for the CPU) they take 2.7 ms, and 8.9 MB of temporaries.
    """

    def spread(word: ir.Value) -> ir.Value:
        return hlo.broadcast_in_dim(e.tensor("ui32", shape), word, []) if shape else word

    def plus(x: ir.Value, y: ir.Value) -> ir.Value:
        return e.binary("add", x, y)

    third = e.binary("xor", e.binary("xor", key[0], key[1]), e.constant(PARITY, "ui32"))
    keys = [spread(key[0]), spread(key[1]), spread(third)]
    x, y = plus(counter[0], keys[0]), plus(counter[1], keys[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = plus(x, y)
            left = e.binary("shift_left", y, e.constant(distance, "ui32", shape))
            right = e.binary("shift_right_logical", y, e.constant(32 - distance, "ui32", shape))
            y = e.binary("xor", x, e.binary("or", left, right))
        x = plus(x, keys[(group + 1) % 3])
        y = plus(plus(y, keys[(group + 2) % 3]), e.constant(group + 1, "ui32", shape))
    return x, y


def _halves(e: Emission, x: ir.Value, shape: Sequence[int]) -> Words:
    high = e.binary("shift_right_logical", x, e.constant(32, "ui64", shape))
    return e.convert(high, "ui32"), e.convert(x, "ui32")


def _row_major_index(e: Emission, shape: Sequence[int]) -> Words:
    """The row-major index of each element, in 32-bit arithmetic unless there are more than 2^32 elements."""
    small = numel(shape) <= 1 << 32
    dtype = "ui32" if small else "ui64"
    index, stride = e.constant(0, dtype, shape), 1
    for dim in reversed([d for d, size in enumerate(shape) if size > 1]):
        along = hlo.iota(e.tensor(dtype, shape), dim)
        index = e.binary("add", index, e.binary("multiply", along, e.constant(stride, dtype, shape)))
        stride *= shape[dim]
    return (e.constant(0, "ui32", shape), index) if small else _halves(e, index, shape)
