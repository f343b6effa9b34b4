"""The output of libtpu 0.0.42.1 for small modules on a v6e (`recorded/`), as reports.

- `step`: two products with a tanh between them, a loss, an update.
- `collectives`: a product, an all-reduce, a permutation and a gather on four chips; `sparsecore` the same with the
  options that let collectives run in parallel with the core.
- `loop`: a product and a tanh, seven times.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from jaxlib import _hlo

from lazytpu.inspection.tpu.hlo import Hlo, read_hlo
from lazytpu.inspection.tpu.module import read_module
from lazytpu.inspection.tpu.program import ProgramReport, examine
from lazytpu.inspection.tpu.schedule import Cost
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.tpu.tpu_compiler import TpuProgram
from lazytpu.runtime.xla.analysis import Memory

FOLDER = Path(__file__).with_name("recorded")
MEMORY = Memory(arguments=3850240, outputs=266784, aliased=266240, temporaries=0, code=217088)


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def proto(hlo: str) -> bytes:
    """Return the HloProto of a scheduled module's text."""
    first, remainder = hlo.split("\n", 1)
    scheduled = first if "is_scheduled" in first else f"{first.rstrip()}, is_scheduled=true"
    module = _hlo.hlo_module_from_text(f"{scheduled}\n{remainder}").as_serialized_hlo_module_proto()
    return b"\x0a" + _varint(len(module)) + module


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def parsed(hlo: str) -> Hlo:
    return read_hlo(proto(hlo))


@cache
def hlo(name: str) -> Hlo:
    return parsed(text(f"{name}.hlo"))


def report(name: str, stablehlo: str | None = None, memory: Memory = MEMORY, devices: int = 1) -> ProgramReport:
    """Return a report as `examine` does; with `stablehlo`, as if that were the compiled module."""
    buffers = FOLDER / f"{name}.buffers"
    compiled = TpuProgram(
        Topology.parse("v6e:2x2"),
        proto(text(f"{name}.hlo")),
        memory,
        buffers.read_text() if buffers.exists() else "",
        1.5,
        devices=devices,
    )
    source = {"sparsecore": "collectives"}.get(name, name)
    figures = examine(compiled, text(f"{source}.mlir"), name=name)
    return figures if stablehlo is None else replace(figures, module=read_module(stablehlo))


def cost_of(costs: list[Cost], name: str) -> Cost:
    (cost,) = [cost for cost in costs if cost.op.name == name]
    return cost
