"""CPU time of each pass on a synthetic training step.

    python tools/time_passes.py [--ops 5000] [--repeat 3] [--xdsl]

The step has linear layers as torch records them (transposed weights), normalizations, activations, a part that is
computed twice, constants, and an optimizer update for each weight. `--xdsl` times xDSL's own cse and dce on the same
module.
"""

from __future__ import annotations

import argparse
import time

from rich.table import Table
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from lazytpu.inspection.highlight import console
from lazytpu.ir.builder import Builder
from lazytpu.ir.text import context
from lazytpu.ir.types import tensor_type
from lazytpu.passes.pipeline import CPU, count_ops, for_target, parse, run_pipeline
from lazytpu.passes.registry import passes

WIDTH, TOKENS = 64, 32


def synthetic(ops: int) -> ModuleOp:
    """A module of about this many ops."""
    square, row = tensor_type("f32", (WIDTH, WIDTH)), tensor_type("f32", (WIDTH,))
    layers = max(1, ops // 52)
    block = Block(arg_types=[tensor_type("f32", (TOKENS, WIDTH)), *[square, row] * layers])
    b = Builder(block)
    x: SSAValue = block.args[0]
    results: list[SSAValue] = []
    for weight, bias in zip(block.args[1::2], block.args[2::2], strict=True):
        y = normalize(b, x)
        y = b.dot_general(y, b.transpose(weight, (1, 0)), (), (), (1,), (0,))
        y = b.add(y, b.broadcast_in_dim(b.reshape(bias, (1, WIDTH)), (TOKENS, WIDTH), (0, 1)))
        x = b.add(x, gelu(b, y))
        gradient = b.transpose(b.dot_general(b.transpose(x, (1, 0)), gelu(b, y), (), (), (1,), (0,)), (1, 0))
        results.append(b.sub(weight, b.mul(gradient, b.constant(1e-3, "f32", (WIDTH, WIDTH)))))
        results.append(b.mul(bias, b.div(b.constant(1.0, "f32", (WIDTH,)), b.constant(2.0, "f32", (WIDTH,)))))
    block.add_op(ReturnOp(x, *results))
    function = FuncOp("main", ([a.type for a in block.args], [v.type for v in (x, *results)]), Region(block))
    attributes: list[dict[str, Attribute]] = [{"lazytpu.name": StringAttr("x")}]
    for i in range(2 * layers):
        successor = IntegerAttr(i + 1, i64)
        name = StringAttr(f"p{i}")
        attributes.append({"lazytpu.name": name, "lazytpu.donate": UnitAttr(), "lazytpu.successor": successor})
    function.arg_attrs = ArrayAttr(DictionaryAttr(each) for each in attributes)
    return ModuleOp([function])


def normalize(b: Builder, x: SSAValue) -> SSAValue:
    """(x - mean) / std over the last dimension."""
    width = b.constant(float(WIDTH), "f32", (TOKENS, 1))
    mean = b.div(b.reduce("add", x, (1,), keepdim=True), width)
    centred = b.sub(x, b.broadcast_to(mean, (TOKENS, WIDTH)))
    variance = b.div(b.reduce("add", b.mul(centred, centred), (1,), keepdim=True), width)
    scale = b.rsqrt(b.add(variance, b.constant(1e-5, "f32", (TOKENS, 1))))
    return b.mul(centred, b.broadcast_to(scale, (TOKENS, WIDTH)))


def gelu(b: Builder, x: SSAValue) -> SSAValue:
    shape = (TOKENS, WIDTH)
    inside = b.mul(x, b.constant(2**-0.5, "f32", shape))
    half = b.mul(b.mul(x, b.constant(0.5, "f32", shape)), b.constant(1.0, "f32", shape))
    return b.mul(half, b.add(b.unary("erf", inside), b.constant(1.0, "f32", shape)))


def cpu_ms(module: ModuleOp, name: str, xdsl: bool) -> float:
    if xdsl:
        from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
        from xdsl.transforms.dead_code_elimination import DeadCodeElimination

        module_pass = {"cse": CommonSubexpressionElimination(), "dce": DeadCodeElimination()}[name]
    else:
        (module_pass,) = parse(name)
    ctx, start = context(), time.process_time()
    module_pass.apply(ctx, module)
    return 1e3 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--xdsl", action="store_true", help="also xDSL's own cse and dce")
    asked = parser.parse_args()
    module = synthetic(asked.ops)
    count = count_ops(module)
    table = Table("pass alone", "CPU ms", "µs per op", title=f"{count:,} ops")
    rows = [(name, False) for name in passes()] + ([("cse", True), ("dce", True)] if asked.xdsl else [])
    for name, xdsl in rows:
        best = min(cpu_ms(module.clone(), name, xdsl) for _ in range(asked.repeat))
        table.add_row(f"xDSL's {name}" if xdsl else name, f"{best:.1f}", f"{1e3 * best / count:.1f}")
    out = console()
    out.print(table)
    start = time.process_time()
    records = run_pipeline(module, verify=False)
    elapsed = 1e3 * (time.process_time() - start)
    out.print(f"pipeline {for_target(CPU)}: {elapsed:.0f} ms CPU with both verifications")
    for record in records:
        out.print(f"  {record!r}", highlight=False)


if __name__ == "__main__":
    main()
