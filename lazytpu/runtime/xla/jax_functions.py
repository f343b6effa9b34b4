"""Conversion of JAX functions to MLIR modules, and of modules to JAX functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lazytpu.runtime.xla.client import client, module_bytecode, raw_platform
from lazytpu.runtime.xla.mlir import drop_locations


def lower_jax_function(
    function: Callable[..., Any],
    operands: Sequence[tuple[np.dtype[Any], Sequence[int]]],
    platform: str | None = None,
    x64: bool = True,
) -> tuple[bytes, list[tuple[np.dtype[Any], tuple[int, ...]]]]:
    """Lower a jax function of arrays with these dtypes and shapes for `platform`, by default the platform of this
    process. Return (MLIR bytecode of its module, (dtype, shape) of each result). `x64` enables 64-bit types, for this
    thread and call alone. The module has no source lines, which would be jax's: XLA then gives its ops the line of
    their call in the user's code."""
    client()  # before jax makes one for its lowering, which would search for TPUs where libtpu is installed
    with jax.enable_x64(x64):
        avals = [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, shape in operands]
        traced = jax.jit(function, keep_unused=True).trace(*avals)
        lowered = traced.lower(lowering_platforms=(raw_platform() if platform is None else platform,))
        leaves = jax.tree.leaves(lowered.out_info)
        module: Any = lowered.compiler_ir("stablehlo")
        drop_locations(module)
        return module_bytecode(module), [(leaf.dtype, tuple(leaf.shape)) for leaf in leaves]


def exported(name: str, module: bytes, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Return a function that calls a StableHLO module from any traced jax function. The module is a portable artifact
    with a public `@main`. `operands` and `results` are `jax.ShapeDtypeStruct`s."""
    like = jax.export.export(
        jax.jit(lambda *arrays: tuple([jax.numpy.zeros(r.shape, r.dtype) for r in results]), keep_unused=True),
        platforms=(raw_platform(),),
    )(*operands)
    replaced = dataclasses.replace(
        like, fun_name=name, mlir_module_serialized=module, module_kept_var_idx=tuple(range(len(operands)))
    )
    return replaced.call
