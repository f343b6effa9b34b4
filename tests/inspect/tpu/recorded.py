"""What libtpu 0.0.42.1 made of small modules for a v6e (`recorded/`), as reports.

`step`: two products with a tanh between them, a loss, an update. `collectives`: a product, an all-reduce, a permutation
and a gather on four chips; `sparsecore` the same with the options that let collectives run beside the core. `loop`: a
product and a tanh, seven times.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lazytpu.inspect.tpu.hlo import Hlo, parse_hlo
from lazytpu.inspect.tpu.report import ProgramReport, examine
from lazytpu.inspect.tpu.schedule import Cost
from lazytpu.runtime.analysis import Memory
from lazytpu.runtime.tpu_compiler import Topology, TpuProgram

FOLDER = Path(__file__).with_name("recorded")
MEMORY = Memory(arguments=3850240, outputs=266784, aliased=266240, temporaries=0, code=217088)


def text(name: str) -> str:
    return (FOLDER / name).read_text()


@cache
def hlo(name: str) -> Hlo:
    return parse_hlo(text(f"{name}.hlo"))


def report(name: str, stablehlo: str | None = None, memory: Memory = MEMORY, devices: int = 1) -> ProgramReport:
    """A report as `examine` makes it; without `stablehlo`, of the module that was compiled."""
    buffers = FOLDER / f"{name}.buffers"
    compiled = TpuProgram(
        Topology.parse("v6e:2x2"),
        text(f"{name}.hlo"),
        memory,
        buffers.read_text() if buffers.exists() else "",
        1.5,
        devices=devices,
    )
    return examine(compiled, text(f"{name}.mlir") if stablehlo is None else stablehlo, name=name)


def cost_of(costs: list[Cost], name: str) -> Cost:
    (found,) = [cost for cost in costs if cost.op.name == name]
    return found
