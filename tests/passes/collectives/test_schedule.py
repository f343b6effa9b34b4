"""The TPU compiler's schedules of collectives: its options are undocumented, and may be ignored by a release."""

from __future__ import annotations

from lazytpu.inspection.tpu.compiling import report_text
from lazytpu.ir.text import print_module
from tests.passes.modules import parse_main

G = "[[0, 1, 2, 3]]"
LAYERS = range(3)


def step() -> str:
    """Return a module that gathers the weights of some layers, and reduce-scatters as many products."""
    arguments = ", ".join(["%x0 : tensor<2048x512xf32>", *(f"%w{i} : tensor<128x512xf32>" for i in LAYERS)])
    lines: list[str] = []
    for i in LAYERS:
        activations, square = "tensor<2048x512xf32>", "tensor<512x512xf32>"
        lines += [
            f"%g{i} = lazytpu.all_gather %w{i} dim = 0 groups = {G} : (tensor<128x512xf32>) -> {square}",
            f"%x{i + 1} = lazytpu.dot_general %x{i}, %g{i} lhs_contract = [1] rhs_contract = [0] precision = default "
            f": ({activations}, {square}) -> {activations}",
            f"%p{i} = lazytpu.dot_general %x{i}, %x{i + 1} lhs_contract = [0] rhs_contract = [0] precision = default "
            f": ({activations}, {activations}) -> {square}",
            f"%s{i} = lazytpu.reduce_scatter add %p{i} dim = 0 groups = {G} : ({square}) -> tensor<128x512xf32>",
        ]
    returned = ", ".join(f"%s{i}" for i in LAYERS)
    types = ", ".join(["tensor<128x512xf32>"] * len(LAYERS))
    module = parse_main(arguments, "\n".join([*lines, f"func.return {returned} : {types}"]))
    return print_module(module).replace("builtin.module", "builtin.module attributes {lazytpu.replicas = 4 : i64}", 1)


def test_gathers_and_scatters_run_beside_compute() -> None:
    (before,) = report_text(step(), "v6e:2x2", name="step", passes="dce").programs
    (after,) = report_text(step(), "v6e:2x2", name="step", passes="overlap-collectives{generation=v6e}").programs
    assert not any(c.op.opcode.endswith("-start") for c in before.collectives)
    started = [str(c.collective) for c in after.collectives if c.op.opcode.endswith("-start")]
    assert sorted(started) == ["all-gather"] * len(LAYERS) + ["reduce-scatter"] * len(LAYERS)
    assert after.exposed < before.exposed / 2
