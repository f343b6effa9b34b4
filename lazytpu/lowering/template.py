"""Calls of templates: a JAX function is lowered once for its operand types and parameters, spliced in and called."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import template as ops
from lazytpu.ir.pointwise import LgammaOp
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.lowering.splice import splice
from lazytpu.lowering.templates.registry import NEEDS, Instance, Types, instance
from lazytpu.runtime.xla import module_options
from lazytpu.runtime.xla.mlir import ir

WIDENED = frozenset(
    """bessel_i0 bessel_i0e bessel_i1 bessel_j0 bessel_j1 bessel_k bessel_y0 bessel_y1 airy_ai spherical_bessel_j0 erfcx
    log_ndtr ndtri trigamma zeta_at_extremes""".split()
)
"""Functions of f32 that are computed in f64 on the CPU: near their zeros and for large arguments, terms cancel."""


@lowers(ops.TemplateOp)
def template(e: Emission, op: ops.TemplateOp, *operands: ir.Value) -> list[ir.Value]:
    name = op.template_name.data
    params = op.arguments
    types = tuple((dtype_of(v.type), shape_of(v.type)) for v in op.operands)
    declared = tuple((dtype_of(v.type), shape_of(v.type)) for v in op.results)
    if name in WIDENED and e.target == "cpu" and all(dtype == "f32" for dtype, _ in (*types, *declared)):
        return _widened(e, instance(name, _in_f64(types), params, e.platform), operands)
    lowered = instance(name, types, params, e.platform)
    if lowered.results != declared:
        raise ValueError(f"template {name} returns {lowered.results}, but the op declares {declared}")
    if name in NEEDS:
        module_options.add_options(e.module, NEEDS[name](e.target, **params))
    symbol = splice(e, lowered)
    return e.call(symbol, [e.settled(x) for x in operands], [e.result(op, i) for i in range(len(declared))])


def _widened(e: Emission, lowered: Instance, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Build a call in f64 of operands in f32, with results in f32."""
    results = [e.tensor(dtype, shape) for dtype, shape in lowered.results]
    wide = e.call(splice(e, lowered), [e.convert(x, "f64") for x in operands], results)
    return [e.convert(x, "f32") for x in wide]


def _in_f64(types: Types) -> Types:
    return tuple(("f64", shape) for _, shape in types)


@lowers(LgammaOp)
def lgamma(e: Emission, op: LgammaOp, x: ir.Value) -> ir.Value:
    # XLA's has an absolute error near the zeros 1 and 2 (https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/
    # math.cc, Lgamma: "Lanczos approximation"). On the CPU f32 is computed in f64, for the zeros below 0.
    types = ((dtype_of(op.operand_type(0)), shape_of(op.operand_type(0))),)
    if e.target == "cpu" and types[0][0] == "f32":
        return _widened(e, instance("lgamma", _in_f64(types), {}, e.platform), [x])[0]
    return e.call(splice(e, instance("lgamma", types, {}, e.platform)), [e.settled(x)], [e.result(op)])[0]
