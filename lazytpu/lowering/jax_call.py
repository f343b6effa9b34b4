"""Calls of custom kernels: the body for the platform is spliced in and called, like a template."""

from __future__ import annotations

from functools import lru_cache

from lazytpu.ir import bodies
from lazytpu.ir import jax_call as ops
from lazytpu.ir.types import FLOATS8, dtype_of, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.lowering.splice import splice
from lazytpu.lowering.templates.registry import Instance, Types
from lazytpu.runtime.xla.mlir import ir

_FLOAT8 = {
    "f8e4m3fn": lambda: ir.Float8E4M3FNType.get(),
    "f8e5m2": lambda: ir.Float8E5M2Type.get(),
    "f8e4m3fnuz": lambda: ir.Float8E4M3FNUZType.get(),
    "f8e5m2fnuz": lambda: ir.Float8E5M2FNUZType.get(),
    "f8e8m0fnu": lambda: ir.Float8E8M0FNUType.get(),
}


@lru_cache(maxsize=1024)
def _instance(key: str, platform: str, results: Types) -> Instance:
    """Return the same object for the same body, so that a module splices it once."""
    return Instance(key, results, bodies.body(key, platform))


@lowers(ops.JaxCallOp)
def jax_call(e: Emission, op: ops.JaxCallOp, *operands: ir.Value) -> list[ir.Value]:
    results = tuple((dtype_of(v.type), shape_of(v.type)) for v in op.results)
    symbol = splice(e, _instance(op.body.data, e.target, results))
    arguments = [
        _as(e, e.settled(x), _own_type(e, dtype_of(v.type), shape_of(v.type)))
        for x, v in zip(operands, op.operands, strict=True)
    ]
    called = e.call(symbol, arguments, [_own_type(e, *result) for result in results])
    return [_as(e, x, e.result(op, i)) for i, x in enumerate(called)]


def _own_type(e: Emission, dtype: str, shape: tuple[int, ...]) -> ir.RankedTensorType:
    """Return the type in a body: 8-bit floats are floats in JAX, and their bits in programs."""
    return ir.RankedTensorType.get(shape, _FLOAT8[dtype]()) if dtype in FLOATS8 else e.tensor(dtype, shape)


def _as(e: Emission, x: ir.Value, kind: ir.RankedTensorType) -> ir.Value:
    return x if x.type == kind else e.create("stablehlo.bitcast_convert", [x], kind)
