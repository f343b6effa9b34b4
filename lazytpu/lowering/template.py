"""Calls of templates: a JAX function is lowered once for its operand types and parameters, spliced in and called."""

from __future__ import annotations

from lazytpu.ir import template as ops
from lazytpu.ir.pointwise import LgammaOp
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.lowering.splice import splice
from lazytpu.lowering.templates.registry import NEEDS, instance
from lazytpu.runtime.xla import module_options
from lazytpu.runtime.xla.mlir import ir


@lowers(ops.TemplateOp)
def template(e: Emission, op: ops.TemplateOp, *operands: ir.Value) -> list[ir.Value]:
    name = op.template_name.data
    params = {key: ops.from_attribute(value) for key, value in op.params.data.items()}
    lowered = instance(name, tuple((dtype_of(v.type), shape_of(v.type)) for v in op.operands), params, e.platform)
    declared = tuple((dtype_of(v.type), shape_of(v.type)) for v in op.results)
    if lowered.results != declared:
        raise ValueError(f"template {name} returns {lowered.results}, but the op declares {declared}")
    if name in NEEDS:
        module_options.add_options(e.module, NEEDS[name](e.target, **params))
    symbol = splice(e, lowered)
    return e.call(symbol, [e.settled(x) for x in operands], [e.result(op, i) for i in range(len(declared))])


@lowers(LgammaOp)
def lgamma(e: Emission, op: LgammaOp, x: ir.Value) -> ir.Value:
    # XLA's has an absolute error near the zeros 1 and 2 (https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/
    # math.cc, Lgamma: "Lanczos approximation"). On the CPU f32 is computed in f64, for the zeros below 0.
    dtype, shape = dtype_of(op.operand_type(0)), shape_of(op.operand_type(0))
    wide = "f64" if e.target == "cpu" and dtype == "f32" else dtype
    symbol = splice(e, instance("lgamma", ((wide, shape),), {}, e.platform))
    return e.convert(e.call(symbol, [e.convert(e.settled(x), wide)], [e.tensor(wide, shape)])[0], dtype)
