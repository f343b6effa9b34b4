"""Moving a value from an array of one bucket to that of another, or to one of its true sizes, on the device.

One small program does it: cut, then padded with zeros. It is made for the sizes in memory; true sizes are part of it
only where they are what is made or taken, so a value that grows needs a program for each bucket and not for each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from lazytpu.runtime.buffers.buffer import MEMORY
from lazytpu.runtime.cache import programs
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Array
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import type_text

Factors: TypeAlias = "tuple[tuple[int, int], ...]"
"Of a dimension that is several merged ones, the outermost first: the size in memory and the true size of each."
Memory: TypeAlias = "tuple[int | Factors, ...]"
"How large an array is along each dimension: its size, of which the first elements are true, or its factors."


def memory_shape(memory: Memory) -> tuple[int, ...]:
    """The shape of an array of these sizes in memory."""
    return tuple([size if isinstance(size, int) else prod(m for m, _ in size) for size in memory])


def _factors(memory: Memory, shape: Sequence[int]) -> list[Factors]:
    """The factors of each dimension of a value of the true sizes `shape`."""
    split = [((size, true),) if isinstance(size, int) else size for size, true in zip(memory, shape, strict=True)]
    for factors, true in zip(split, shape, strict=True):
        if prod(t for _, t in factors) != true or any(m < t for m, t in factors):
            raise ValueError(f"an array of sizes {memory} cannot hold a value of sizes {tuple(shape)}")
    return split


def cut(array: np.ndarray[Any, Any], memory: Memory, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The true elements of an array on the host."""
    factors = [f for each in _factors(memory, shape) for f in each]
    split = array.reshape([m for m, _ in factors])
    return np.ascontiguousarray(split[tuple([slice(0, t) for _, t in factors])]).reshape(shape)


def padded(array: np.ndarray[Any, Any], memory: Memory) -> np.ndarray[Any, Any]:
    """A copy on the host of an array of true sizes, padded with zeros."""
    factors = [f for each in _factors(memory, array.shape) for f in each]
    split = np.zeros([m for m, _ in factors], array.dtype)
    split[tuple([slice(0, t) for _, t in factors])] = array.reshape([t for _, t in factors])
    return split.reshape(memory_shape(memory))


def moved(array: Array, source: Memory, target: Memory, shape: tuple[int, ...]) -> Array:
    """A copy, made on the device, of the array of a value of the true sizes `shape`: from the sizes in memory `source`
    to those of `target`.

    Raises ValueError when one of the two is too small, CompileError, RunError, and OutOfMemory when there is no room.
    """
    split, kept, joined, grown = list[int](), list[int](), list[int](), list[int]()
    for before, after in zip(_factors(source, shape), _factors(target, shape), strict=True):
        split += [m for m, _ in before]
        grown += [m for m, _ in after]
        if [t for _, t in before] == [t for _, t in after]:  # the same dimensions, smaller or larger
            sizes = [min(m, n) for (m, _), (n, _) in zip(before, after, strict=True)]
            kept += sizes
            joined += sizes
        else:
            kept += [t for _, t in before]
            joined += [t for _, t in after]
    dtype: np.dtype[Any] = array.dtype
    steps = tuple(split), tuple(kept), tuple(joined), tuple(grown)
    program = _mover(dtype, memory_shape(source), *steps, memory_shape(target))
    MEMORY.note_execution(program.memory.temporaries, dtype.itemsize * prod(grown), 0)
    return program.run([array])[0]


@lru_cache(maxsize=1024)
def _mover(
    dtype: np.dtype[Any],
    source: tuple[int, ...],
    split: tuple[int, ...],
    kept: tuple[int, ...],
    joined: tuple[int, ...],
    grown: tuple[int, ...],
    target: tuple[int, ...],
) -> Program:
    """The program that views an array as `split`, keeps the first elements, views these as `joined`, pads them to
    `grown`, and views that as `target`."""
    kinds = [type_text((dtype, sizes)) for sizes in (source, split, kept, joined, grown, target)]
    ranges = ", ".join(f"0:{size}" for size in kept)
    zeros = f"array<i64{':' if joined else ''} {', '.join('0' for _ in joined)}>"
    more = f"array<i64{':' if joined else ''} {', '.join(str(n - m) for m, n in zip(joined, grown, strict=True))}>"
    body = f"""
        %zero = stablehlo.constant dense<{_zero(dtype)}> : {type_text((dtype, ()))}
        %split = stablehlo.reshape %x : ({kinds[0]}) -> {kinds[1]}
        %kept = stablehlo.slice %split [{ranges}] : ({kinds[1]}) -> {kinds[2]}
        %joined = stablehlo.reshape %kept : ({kinds[2]}) -> {kinds[3]}
        %grown = "stablehlo.pad"(%joined, %zero) {{edge_padding_low = {zeros}, edge_padding_high = {more},
            interior_padding = {zeros}}} : ({kinds[3]}, {type_text((dtype, ()))}) -> {kinds[4]}
        %y = stablehlo.reshape %grown : ({kinds[4]}) -> {kinds[5]}
        return %y : {kinds[5]}"""
    return _program("repad", f"(%x: {kinds[0]}) -> {kinds[5]}", body)


def poisoned(array: Array, memory: Memory, shape: tuple[int, ...]) -> Array:
    """A copy of an array whose padding holds what spoils any result that depends on it: NaN, the largest integer, or
    True."""
    factors = [f for each in _factors(memory, shape) for f in each]
    if all(m == t for m, t in factors):
        return array
    dtype: np.dtype[Any] = array.dtype
    program = _poisoner(dtype, array.shape, tuple([m for m, _ in factors]))
    trues = np.array([t for _, t in factors], np.int32)
    return program.run([array, client.to_device(trues), client.to_device(_poison(dtype))])[0]


@lru_cache(maxsize=1024)
def _poisoner(dtype: np.dtype[Any], shape: tuple[int, ...], split: tuple[int, ...]) -> Program:
    kind, kinds, scalar = (type_text((dtype, sizes)) for sizes in (shape, split, ()))
    sizes, indices, flags = (type_text((np.dtype(name), split)) for name in ("i4", "i4", "?"))
    packed = type_text((np.dtype("i4"), (len(split),)))
    body = f"""
        %split = stablehlo.reshape %x : ({kind}) -> {kinds}
        %fill = stablehlo.broadcast_in_dim %poison, dims = [] : ({scalar}) -> {kinds}
        %m0 = stablehlo.constant dense<true> : {flags}"""
    for dim in range(len(split)):
        body += f"""
        %i{dim} = stablehlo.iota dim = {dim} : {indices}
        %o{dim} = stablehlo.slice %sizes [{dim}:{dim + 1}] : ({packed}) -> tensor<1xi32>
        %s{dim} = stablehlo.reshape %o{dim} : (tensor<1xi32>) -> tensor<i32>
        %n{dim} = stablehlo.broadcast_in_dim %s{dim}, dims = [] : (tensor<i32>) -> {sizes}
        %c{dim} = stablehlo.compare LT, %i{dim}, %n{dim} : ({indices}, {sizes}) -> {flags}
        %m{dim + 1} = stablehlo.and %m{dim}, %c{dim} : {flags}"""
    body += f"""
        %true = stablehlo.select %m{len(split)}, %split, %fill : {flags}, {kinds}
        %y = stablehlo.reshape %true : ({kinds}) -> {kind}
        return %y : {kind}"""
    return _program("poison", f"(%x: {kind}, %sizes: {packed}, %poison: {scalar}) -> {kind}", body)


def _program(name: str, signature: str, body: str) -> Program:
    with client.mlir_context():
        module = ir.Module.parse(f"module @{name} {{ func.func public @main{signature} {{ {body} }} }}")
    return programs.obtain(module, programs.program_key(module), name=name).program


def _zero(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "c":
        return "(0.0, 0.0)"
    return {"b": "false", "i": "0", "u": "0"}.get(dtype.kind, "0.0")


def _poison(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype.kind in "iu":
        return np.array(np.iinfo(dtype).max, dtype)
    return np.array(True if dtype.kind == "b" else np.nan, dtype)


def forget() -> None:
    """Make all programs anew: the device is another one."""
    _mover.cache_clear()
    _poisoner.cache_clear()
