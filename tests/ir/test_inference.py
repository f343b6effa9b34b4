"""Inferred result types compared with JAX's and numpy's on random arguments: the same shape, or both raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from xdsl.ir import Block, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, shape_of, tensor_type

Shape = tuple[int, ...]
DTYPES = {"f32": jnp.float32, "i32": jnp.int32}

many = settings(max_examples=30, deadline=None)
sizes = st.integers(0, 5)
shapes = st.lists(sizes, max_size=3).map(tuple)


def lists(low: int, high: int, length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=length, max_size=length)


def agree(ours: Callable[..., SSAValue], theirs: Callable[..., jax.Array], *operands: tuple[str, Shape]) -> None:
    """`ours(b, *values)` has the type of `theirs(*arrays)`, or both raise."""
    b = Builder(Block(arg_types=[tensor_type(dtype, shape) for dtype, shape in operands]))
    arrays = [jax.ShapeDtypeStruct(shape, DTYPES[dtype]) for dtype, shape in operands]
    try:
        expected = jax.eval_shape(theirs, *arrays)
    except (TypeError, ValueError, IndexError, AssertionError, ZeroDivisionError):
        expected = None
    try:
        result = ours(b, *b.block.args)
    except ValueError:
        assert expected is None
        return
    assert expected is not None, f"{result.type} was built, but JAX refuses"
    names = {v: k for k, v in DTYPES.items()}
    assert (dtype_of(result), shape_of(result)) == (names[expected.dtype.type], expected.shape)


@many
@given(st.data())
def test_slice(data: st.DataObject):
    shape = data.draw(shapes)
    n = len(shape)
    starts, limits = data.draw(lists(0, 3, n)), data.draw(lists(1, 5, n))
    strides = data.draw(st.none() | lists(0, 3, n))
    agree(
        lambda b, x: b.slice(x, starts, limits, strides),
        lambda x: lax.slice(x, starts, limits, strides),
        ("f32", shape),
    )


@many
@given(st.data())
def test_pad(data: st.DataObject):
    shape = data.draw(shapes)
    low, high, interior = (data.draw(lists(least, 3, len(shape))) for least in (-3, -3, 0))
    config = list(zip(low, high, interior, strict=True))
    agree(
        lambda b, x, v: b.pad(x, v, low, high, interior),
        lambda x, v: lax.pad(x, v, config),
        ("f32", shape),
        ("f32", ()),
    )


@many
@given(st.data())
def test_broadcast_in_dim(data: st.DataObject):
    result = data.draw(shapes)
    dims = data.draw(st.lists(st.integers(0, 3), max_size=3))
    shape = tuple(data.draw(st.sampled_from([1, result[d], 2])) if d < len(result) else 1 for d in dims)
    agree(
        lambda b, x: b.broadcast_in_dim(x, result, sorted(dims)),
        lambda x: lax.broadcast_in_dim(x, result, sorted(dims)),
        ("i32", shape),
    )


@many
@given(shapes, st.data())
def test_broadcast_to_agrees_with_numpy(shape: Shape, data: st.DataObject):
    result = data.draw(shapes | st.just((2, *shape)))
    agree(lambda b, x: b.broadcast_to(x, result), lambda x: jnp.broadcast_to(x, result), ("f32", shape))


@many
@given(shapes, shapes)
def test_reshape(shape: Shape, result: Shape):
    agree(
        lambda b, x: b.reshape(x, result), lambda x: jnp.empty(np.empty(x.shape).reshape(result).shape), ("f32", shape)
    )


@many
@given(shapes, st.data())
def test_transpose_and_reverse(shape: Shape, data: st.DataObject):
    permutation = data.draw(st.permutations(range(len(shape))) | st.lists(st.integers(0, 3), max_size=3))
    agree(lambda b, x: b.transpose(x, permutation), lambda x: lax.transpose(x, permutation), ("f32", shape))
    agree(lambda b, x: b.reverse(x, permutation), lambda x: lax.rev(x, permutation), ("f32", shape))


@many
@given(shapes, st.data())
def test_concatenate(shape: Shape, data: st.DataObject):
    dim = data.draw(st.integers(0, 3))
    following = [list(shape) for _ in range(data.draw(st.integers(2, 3)))]
    for following_shape in following:
        for d in range(len(following_shape)):
            if d == dim or data.draw(st.integers(0, 9)) == 0:
                following_shape[d] = data.draw(sizes)
    agree(
        lambda b, *xs: b.concatenate(xs, dim),
        lambda *xs: lax.concatenate(xs, dim),
        *[("f32", tuple(following_shape)) for following_shape in following],
    )


@many
@given(shapes, st.data())
def test_reductions(shape: Shape, data: st.DataObject):
    dims = data.draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), max_size=3, unique=True))
    keepdim = data.draw(st.booleans())
    agree(
        lambda b, x: b.reduce("add", x, dims, keepdim),
        lambda x: jnp.sum(x, tuple(dims), keepdims=keepdim),
        ("f32", shape),
    )
    dim = data.draw(st.integers(0, 3))
    agree(lambda b, x: b.cumulative("mul", x, dim), lambda x: lax.cumprod(x, dim), ("f32", shape))
    agree(
        lambda b, x: b.argreduce("min", x, dim)[0], lambda x: lax.argmin(x, dim, np.int32).astype("f4"), ("f32", shape)
    )
    agree(lambda b, x: b.sort([x], dim)[0], lambda x: lax.sort(x, dimension=dim), ("f32", shape))


def assume_not_overcropped(shape: Sequence[int], low: list[int], high: list[int], dilations: list[int]) -> None:
    """JAX accepts padding that removes more elements than there are; the dialect rejects it."""
    for size, before, after, dilation in zip(shape, low, high, dilations, strict=True):
        assume((max(size, 1) - 1) * dilation + min(size, 1) + before + after >= 0)


@many
@given(shapes, st.data())
def test_reduce_window(shape: Shape, data: st.DataObject):
    n = len(shape)
    window, strides = data.draw(lists(1, 3, n)), data.draw(lists(1, 3, n))
    low, high = data.draw(lists(-1, 2, n)), data.draw(lists(-1, 2, n))
    base, dilated = data.draw(lists(1, 3, n)), data.draw(lists(1, 3, n))
    assume_not_overcropped(shape, low, high, base)
    agree(
        lambda b, x: b.reduce_window("max", x, window, strides, low, high, base, dilated),
        lambda x: lax.reduce_window(
            x, -np.inf, lax.max, window, strides, list(zip(low, high, strict=True)), base, dilated
        ),
        ("f32", shape),
    )


@many
@given(st.data())
def test_dot_general(data: st.DataObject):
    lhs_shape, right = data.draw(shapes), data.draw(shapes)
    free = list(range(min(len(lhs_shape), len(right))))
    of_left, of_right = data.draw(st.permutations(free)), data.draw(st.permutations(free))
    batch, contract = data.draw(st.integers(0, len(free))), data.draw(st.integers(0, len(free)))
    dims = (
        of_left[:batch],
        of_right[:batch],
        of_left[batch : batch + contract],
        of_right[batch : batch + contract],
    )
    if data.draw(st.integers(0, 9)):
        matched = list(right)
        for i, j in zip(dims[0] + dims[2], dims[1] + dims[3], strict=True):
            matched[j] = lhs_shape[i]
        right = tuple(matched)
    agree(
        lambda b, x, y: b.dot_general(x, y, *dims),
        lambda x, y: lax.dot_general(x, y, ((dims[2], dims[3]), (dims[0], dims[1]))),
        ("f32", lhs_shape),
        ("f32", right),
    )


def spelled(letters: str, spec: Sequence[int]) -> str:
    """The text of a layout from JAX's order: the positions of the two lettered dims, then of the spatial ones."""
    text = [""] * len(spec)
    for position, letter in zip(spec, [*letters, *map(str, range(len(spec) - 2))], strict=True):
        text[position] = letter
    return "".join(text)


def permuted(sizes: Sequence[int], spec: Sequence[int]) -> Shape:
    result = [0] * len(spec)
    for position, size in zip(spec, sizes, strict=True):
        result[position] = size
    return tuple(result)


@many
@given(st.data())
def test_convolution(data: st.DataObject):
    n = data.draw(st.integers(0, 2))
    feature_groups, batch_groups = data.draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)]))
    batch, taken, out = data.draw(lists(1, 4, 3))
    features = taken * feature_groups if data.draw(st.integers(0, 9)) else taken + 1
    image, window = data.draw(lists(0, 6, n)), data.draw(lists(1, 3, n))
    strides, lhs_dilation, rhs_dilation = (data.draw(lists(1, 3, n)) for _ in range(3))
    low, high = data.draw(lists(-1, 2, n)), data.draw(lists(-1, 2, n))
    assume_not_overcropped(image, low, high, lhs_dilation)
    specs = [tuple(data.draw(st.permutations(range(n + 2)))) for _ in range(3)]
    layout = ",".join(spelled(letters, spec) for letters, spec in zip(("NC", "OI", "NC"), specs, strict=True))
    agree(
        lambda b, x, w: b.convolution(
            x,
            w,
            strides=strides,
            low=low,
            high=high,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            feature_groups=feature_groups,
            batch_groups=batch_groups,
            layout=layout,
        ),
        lambda x, w: lax.conv_general_dilated(
            x,
            w,
            strides,
            list(zip(low, high, strict=True)),
            lhs_dilation,
            rhs_dilation,
            lax.ConvDimensionNumbers(*specs),
            feature_groups,
            batch_groups,
        ),
        ("f32", permuted((batch, features, *image), specs[0])),
        ("f32", permuted((out, taken, *window), specs[1])),
    )


@st.composite
def gathers(draw: st.DrawFn) -> tuple[Shape, Shape, Shape, dict[str, list[int]]]:
    """(operand shape, indices shape without the vector, slice sizes, dimension numbers as of gather)."""
    rank = draw(st.integers(1, 3))
    shape = draw(lists(1, 4, rank))
    order = draw(st.permutations(range(rank)))
    cuts = sorted(draw(lists(0, rank, 2)))
    batching, collapsed = sorted(order[: cuts[0]]), sorted(order[cuts[0] : cuts[1]])
    free = [d for d in range(rank) if d not in batching]
    mapped = draw(st.permutations(free))[: draw(st.integers(0, len(free)))]
    slices = [1 if d in batching or d in collapsed else draw(st.integers(0, shape[d])) for d in range(rank)]
    if mapped and draw(st.integers(0, 9)) == 0:  # without index vectors JAX checks no sizes
        slices[0] = draw(st.integers(2, 5))
    outer = draw(st.lists(st.integers(1, 3), max_size=2)) + [0] * len(batching)
    places = draw(st.permutations(range(len(outer))))[: len(batching)]
    for of_operand, of_indices in zip(batching, places, strict=True):
        outer[of_indices] = shape[of_operand]
    outer = [size or 2 for size in outer]
    window_rank = rank - len(batching) - len(collapsed)
    offsets = sorted(draw(st.permutations(range(len(outer) + window_rank)))[:window_rank])
    numbers = {
        "offset_dims": offsets,
        "collapsed_slice_dims": collapsed,
        "start_index_map": list(mapped),
        "operand_batching_dims": batching,
        "start_indices_batching_dims": list(places),
    }
    return tuple(shape), tuple(outer), tuple(slices), numbers


@many
@given(gathers(), st.integers(0, 3))
def test_gather(case: tuple[Shape, Shape, Shape, dict[str, list[int]]], spoil: int):
    shape, outer, slices, numbers = case
    length = len(numbers["start_index_map"]) + (spoil == 0)
    agree(
        lambda b, x, i: b.gather(x, i, **numbers, index_vector_dim=len(outer), slice_sizes=slices),
        lambda x, i: lax.gather(
            x, i, lax.GatherDimensionNumbers(**{key: tuple(dims) for key, dims in numbers.items()}), slices
        ),
        ("f32", shape),
        ("i32", (*outer, length)),
    )


@many
@given(gathers())
def test_place_of_index_vectors_does_not_matter(case: tuple[Shape, Shape, Shape, dict[str, list[int]]]):
    shape, outer, slices, numbers = case
    length = len(numbers["start_index_map"])
    b = Builder(Block(arg_types=[tensor_type("f32", shape), tensor_type("i32", (*outer, length))]))
    try:
        expected = b.gather(*b.block.args, **numbers, index_vector_dim=len(outer), slice_sizes=slices)
    except ValueError:
        return
    moved = numbers | {"start_indices_batching_dims": [d + 1 for d in numbers["start_indices_batching_dims"]]}
    front = Builder(Block(arg_types=[tensor_type("f32", shape), tensor_type("i32", (length, *outer))]))
    assert front.gather(*front.block.args, **moved, index_vector_dim=0, slice_sizes=slices).type == expected.type
    if length == 1:
        none = Builder(Block(arg_types=[tensor_type("f32", shape), tensor_type("i32", outer)]))
        result = none.gather(*none.block.args, **numbers, index_vector_dim=len(outer), slice_sizes=slices)
        assert result.type == expected.type


@many
@given(gathers(), st.integers(0, 9))
def test_scatter(case: tuple[Shape, Shape, Shape, dict[str, list[int]]], spoil: int):
    shape, outer, slices, numbers = case
    removed = numbers["collapsed_slice_dims"] + numbers["operand_batching_dims"]
    window = iter(size for d, size in enumerate(slices) if d not in removed)
    outer_sizes = iter(outer)
    rank = len(outer) + len(numbers["offset_dims"])
    updates = [next(window) if d in numbers["offset_dims"] else next(outer_sizes) for d in range(rank)]
    if updates and spoil == 0:
        updates[0] += 1
    ours = {
        "update_window_dims": numbers["offset_dims"],
        "inserted_window_dims": numbers["collapsed_slice_dims"],
        "scatter_dims_to_operand_dims": numbers["start_index_map"],
        "input_batching_dims": numbers["operand_batching_dims"],
        "scatter_indices_batching_dims": numbers["start_indices_batching_dims"],
    }
    theirs = {key.replace("input_batching", "operand_batching"): tuple(dims) for key, dims in ours.items()}
    agree(
        lambda b, x, i, u: b.scatter(x, i, u, kind="add", **ours, index_vector_dim=len(outer)),
        lambda x, i, u: lax.scatter_add(x, i, u, lax.ScatterDimensionNumbers(**theirs)),
        ("f32", shape),
        ("i32", (*outer, len(numbers["start_index_map"]))),
        ("f32", tuple(updates)),
    )


@many
@given(shapes, st.data())
def test_dynamic_slices(shape: Shape, data: st.DataObject):
    taken = data.draw(lists(0, 5, len(shape)))
    starts = [("i32", ())] * len(shape)
    agree(
        lambda b, x, *starts: b.dynamic_slice(x, starts, taken),
        lambda x, *starts: lax.dynamic_slice(x, starts, taken),
        ("f32", shape),
        *starts,
    )
    agree(
        lambda b, x, u, *starts: b.dynamic_update_slice(x, u, starts),
        lambda x, u, *starts: lax.dynamic_update_slice(x, u, starts),
        ("f32", shape),
        ("f32", tuple(taken)),
        *starts,
    )


@pytest.mark.parametrize(
    ("source", "target", "shape"),
    [("f32", "i32", (3,)), ("f32", "ui8", (2, 3)), ("i16", "f32", (3, 2)), ("f64", "f16", ()), ("i8", "f64", (2, 8))],
)
def test_bitcast_convert(source: str, target: str, shape: Shape):
    with jax.enable_x64(True):
        names = {"i16": jnp.int16, "f64": jnp.float64, "f16": jnp.float16, "ui8": jnp.uint8, "i8": jnp.int8} | DTYPES
        array = jax.ShapeDtypeStruct(shape, names[source])
        expected = jax.eval_shape(lambda x: lax.bitcast_convert_type(x, names[target]), array)
    b = Builder(Block(arg_types=[tensor_type(source, shape)]))
    result = b.bitcast_convert(b.block.args[0], target, expected.shape)
    assert (dtype_of(result), shape_of(result)) == (target, expected.shape)
