"""Moving a value between arrays of different buckets, or to an array of its true sizes, on the device.

One small program slices the array and pads it with zeros. It depends on the sizes in memory. It depends on the true
sizes only if the source or target array has these, so a growing value needs one program for each bucket and not for
each size.
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
"""The factors of a dimension that merges several, the outermost first: (size in memory, true size) of each factor."""
Memory: TypeAlias = "tuple[int | Factors, ...]"
"""The sizes of an array in memory, for each dimension an int or its factors. The first elements along each are true."""


def memory_shape(memory: Memory) -> tuple[int, ...]:
    """Return the shape of an array of these sizes in memory."""
    return tuple([size if isinstance(size, int) else prod(m for m, _ in size) for size in memory])


def _factors(memory: Memory, shape: Sequence[int]) -> list[Factors]:
    """Return the factors of each dimension of a value of true sizes `shape`. Raises ValueError if it does not fit."""
    split = [((size, true),) if isinstance(size, int) else size for size, true in zip(memory, shape, strict=True)]
    for factors, true in zip(split, shape, strict=True):
        if prod(t for _, t in factors) != true or any(m < t for m, t in factors):
            raise ValueError(f"an array of sizes {memory} cannot hold a value of sizes {tuple(shape)}")
    return split


def cut(array: np.ndarray[Any, Any], memory: Memory, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the true elements of an array on the host."""
    factors = [f for dim in _factors(memory, shape) for f in dim]
    split = array.reshape([m for m, _ in factors])
    return np.ascontiguousarray(split[tuple([slice(0, t) for _, t in factors])]).reshape(shape)


def padded(array: np.ndarray[Any, Any], memory: Memory) -> np.ndarray[Any, Any]:
    """Return a copy, on the host, of an array of true sizes, padded with zeros to `memory`."""
    factors = [f for dim in _factors(memory, array.shape) for f in dim]
    split = np.zeros([m for m, _ in factors], array.dtype)
    split[tuple([slice(0, t) for _, t in factors])] = array.reshape([t for _, t in factors])
    return split.reshape(memory_shape(memory))


def moved(array: Array, source: Memory, target: Memory, shape: tuple[int, ...]) -> Array:
    """Return a copy, computed on the device, of an array of a value of the true sizes `shape`. The sizes in memory
    change from `source` to `target`.

    Raises ValueError when a memory size is less than the true size, CompileError, RunError, and OutOfMemory when the
    copy does not fit.
    """
    split, sliced, joined, padded_sizes = list[int](), list[int](), list[int](), list[int]()
    for before, after in zip(_factors(source, shape), _factors(target, shape), strict=True):
        split += [m for m, _ in before]
        padded_sizes += [m for m, _ in after]
        # the same factors, of smaller or larger buckets: neither true size is part of the program
        if [t for _, t in before] == [t for _, t in after]:
            sizes = [min(m, n) for (m, _), (n, _) in zip(before, after, strict=True)]
            sliced += sizes
            joined += sizes
        else:
            sliced += [t for _, t in before]
            joined += [t for _, t in after]
    dtype: np.dtype[Any] = array.dtype
    steps = tuple(split), tuple(sliced), tuple(joined), tuple(padded_sizes)
    program = _mover(dtype, memory_shape(source), *steps, memory_shape(target))
    MEMORY.note_execution(program.memory.temporaries, dtype.itemsize * prod(padded_sizes), 0)
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
    """Compile the program that reshapes an array to `split`, slices its first elements `kept`, reshapes these to
    `joined`, pads them to `grown`, and reshapes the result to `target`."""
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
    """Return a copy of an array whose padding holds NaN, the largest integer, or True, so that results that depend on
    padding are wrong."""
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
    """Drop the compiled programs, since the device has changed."""
    _mover.cache_clear()
    _poisoner.cache_clear()
