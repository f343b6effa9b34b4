"""Random bits: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

Bits depend only on the seed, the offset and the row-major index of each element; not on tiling, sharding, or the rest
of the program. ui64 elements are the two output words (first word high), ui32 elements their xor, as in jax with
`jax_threefry_partitionable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from xdsl.ir import Block, SSAValue

from lazytpu.ir import random as ops
from lazytpu.ir.base import integer
from lazytpu.ir.constants import NumberOp
from lazytpu.ir.types import dtype_of, numel, shape_of
from lazytpu.lowering.emission import Emission, Words
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import func, ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA  # the key-schedule constant of Threefry-2x32 (Random123)


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
    key = e.keys.get(id(op)) or _key(e, seed, offset)
    return e.call(symbol, [*key, *index], [e.result(op)])


def _define(e: Emission, name: str, dtype: str, shape: tuple[int, ...], indexed: bool) -> None:
    word, result = e.tensor("ui32"), e.tensor(dtype, shape)
    arguments = [word, word, e.tensor("ui32", shape)] if indexed else [word, word]
    function = func.FuncOp(name, ir.FunctionType.get(arguments, [result]), visibility="private")
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        key = block.arguments[0], block.arguments[1]
        index = (e.constant(0, "ui32", shape), block.arguments[2]) if indexed else _row_major_index(e, shape)
        high, low = threefry(e, key, index, shape)
        if dtype == "ui64":
            wide = [e.convert(word, "ui64") for word in (high, low)]
            bits = e.binary("or", e.binary("shift_left", wide[0], e.constant(32, "ui64", shape)), wide[1])
        else:
            bits = e.binary("xor", high, low)
        func.ReturnOp([bits])


def derive_keys(e: Emission, block: Block, values: Mapping[SSAValue, ir.Value]) -> None:
    """Emit the keys of the streams of a function, before its ops, into `e.keys`. `values` has its arguments.

    A key takes a hundred ops. Computed as the elements of one tensor, the keys of all streams take no more: a training
    step with eight dropouts compiles in three quarters of the time.
    """
    draws = [op for op in block.ops if isinstance(op, ops.RandomBitsOp) and all(map(_given, (op.seed, op.offset)))]
    if len(draws) < 2:
        return
    shape = (len(draws),)
    seeds = _gathered(e, [op.seed for op in draws], values)
    offsets = _gathered(e, [op.offset for op in draws], values)
    words = threefry(e, _halves(e, seeds, shape), _halves(e, offsets, shape), shape)
    # XLA:CPU would recompute the keys in each fusion with random bits, wherever it keeps barriers (bound-fusions).
    words = [e.create("stablehlo.optimization_barrier", [word], word.type) for word in words]
    for i, op in enumerate(draws):
        high, low = (_element(e, word, i) for word in words)
        e.keys[id(op)] = high, low


def _given(value: SSAValue) -> bool:
    """Whether a value is an argument of its function, or a number of one."""
    return isinstance(value.owner, Block) or (
        isinstance(value.owner, NumberOp) and isinstance(value.owner.pack.owner, Block)
    )


def _gathered(e: Emission, scalars: Sequence[SSAValue], values: Mapping[SSAValue, ir.Value]) -> ir.Value:
    """The 0-d ui64 values as one tensor; evenly spaced numbers of one argument are a slice of it."""
    numbers = [value.owner for value in scalars if isinstance(value.owner, NumberOp)]
    places = [integer(number.index) for number in numbers]
    steps = {after - before for before, after in pairwise(places)}
    packs = {number.pack for number in numbers}
    if len(numbers) == len(scalars) and len(packs) == 1 and len(steps) == 1 and (step := steps.pop()) > 0:
        return hlo.slice(values[packs.pop()], [places[0]], [places[-1] + 1], [step])
    one = e.tensor("ui64", (1,))
    pieces: list[ir.Value] = []
    for value in scalars:
        if isinstance(value.owner, NumberOp):
            place = integer(value.owner.index)
            pieces.append(hlo.slice(values[value.owner.pack], [place], [place + 1], [1]))
        else:
            pieces.append(hlo.reshape(one, values[value]))
    return hlo.concatenate(pieces, 0)


def _element(e: Emission, word: ir.Value, i: int) -> ir.Value:
    return hlo.reshape(e.tensor("ui32"), hlo.slice(word, [i], [i + 1], [1]))


def _key(e: Emission, seed: ir.Value, offset: ir.Value) -> Words:
    """Build the 0-d key of a stream. It is computed as one element of two, the other being the key of the next offset.
    On a TPU, XLA does not fuse scalars, and would schedule each of these hundred ops on the scalar unit (three
    dropouts: 389 scheduled ops; as pairs 43)."""
    symbol = e.function(("random_key",), "random_key", lambda name: _define_key(e, name))
    high, low = e.call(symbol, [seed, offset], [e.tensor("ui32")] * 2)
    return high, low


def _define_key(e: Emission, name: str) -> None:
    seed_type, word = e.tensor("ui64"), e.tensor("ui32")
    function = func.FuncOp(name, ir.FunctionType.get([seed_type, seed_type], [word, word]), visibility="private")
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        pair_type = e.tensor("ui32", (2,))
        key = _halves(e, block.arguments[0], ())
        high, low = (hlo.broadcast_in_dim(pair_type, word, []) for word in _halves(e, block.arguments[1], ()))
        low = e.binary("add", low, hlo.iota(pair_type, 0))
        func.ReturnOp([_element(e, word, 0) for word in threefry(e, key, (high, low), (2,))])


def threefry(e: Emission, key: Words, counter: Words, shape: Sequence[int]) -> Words:
    """Threefry-2x32 of a key, 0-d or of shape `shape`, and a counter of that shape.

    The 20 rounds are unrolled: XLA fuses them with the users of the bits, and one million masked elements take 1.5 ms
    on XLA:CPU. As a loop (jax's choice for the CPU) they take 2.7 ms, and 8.9 MB of temporaries.
    """

    def spread(word: ir.Value) -> ir.Value:
        return hlo.broadcast_in_dim(e.tensor("ui32", shape), word, []) if word.type != e.tensor("ui32", shape) else word

    def plus(x: ir.Value, y: ir.Value) -> ir.Value:
        return e.binary("add", x, y)

    parity = e.constant(PARITY, "ui32", ir.RankedTensorType(key[0].type).shape)
    third = e.binary("xor", e.binary("xor", key[0], key[1]), parity)
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
