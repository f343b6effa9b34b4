"""Reports as JSON. docs/tpu-report.md describes the fields; increment `report.SCHEMA` when they change."""

from __future__ import annotations

from typing import Any

from lazytpu.inspection.tpu.advice import advise
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.program import ProgramReport
from lazytpu.inspection.tpu.schedule import Cost
from lazytpu.runtime.tpu.tpu_compiler import libtpu


def program(report: ProgramReport) -> dict[str, Any]:
    """Return the JSON of one program."""
    facts, compiled = report.facts, report.program
    by_flops, by_bytes = report.roofline
    return {
        "name": report.name,
        "topology": str(compiled.topology),
        "generation": facts.name,
        "devices": report.devices,
        "compiler": f"libtpu {libtpu()}",
        "compile_seconds": compiled.seconds,
        "seconds": report.seconds,
        "matrix_unit": {"flops": report.flops, "peak": facts.device_flops, "utilisation": report.utilisation},
        "traffic": {
            "bytes": report.hbm_bytes,
            "bandwidth": facts.device_hbm_bandwidth,
            "share": report.bandwidth_share,
        },
        "roofline": {"flops_seconds": by_flops, "bytes_seconds": by_bytes},
        "exposed_seconds": report.exposed,
        "complete": report.complete,
        "notes": list(report.notes),
        "unknown_loops": list(report.schedule.unknown),
        "unknown_calls": [cost.op.name for cost in report.unknown],
        "ops": [_op(report, cost) for cost in report.costs],
        "timeline": [
            {"lane": span.lane, "start": span.start, "end": span.end, "op": span.op} for span in report.schedule.spans
        ],
        "path": [{"op": op.name, "seconds": seconds} for op, seconds in report.path],
        "memory": _memory(report),
        "padding": [
            {
                "op": item.op,
                "argument": item.argument,
                "array": str(item.array),
                "bytes": item.array.bytes,
                "padded_bytes": item.array.padded_bytes,
                "line": line(item.line),
            }
            for item in report.padded
        ],
        "advice": [
            {
                "code": item.code,
                "text": item.text,
                "fix": item.fix,
                "line": line(item.line),
                "seconds": item.seconds,
                "bytes": item.bytes,
            }
            for item in advise(report)
        ],
    }


def line(place: ProgramLine | None) -> dict[str, Any] | None:
    """Return the JSON of a line of the user's program, or None."""
    return None if place is None else {
        "file": place.file, "line": place.line, "backward": place.backward, "module": place.module,
    }  # fmt: skip


def _op(report: ProgramReport, cost: Cost) -> dict[str, Any]:
    lines = report.lines(cost.op)
    return {
        "name": cost.op.name,
        "opcode": cost.op.opcode,
        "kind": cost.kind,
        "bound": cost.bound,
        "result": ", ".join(map(str, cost.op.results)),
        "runs": cost.runs,
        "seconds": None if cost.unknown else cost.seconds,
        "waited_seconds": cost.waited,
        "beside_seconds": cost.beside,
        "flops": cost.flops,
        "bytes": cost.hbm_bytes,
        "collective": cost.collective,
        "payload_bytes": cost.payload,
        "line": line(lines[0]) if lines else None,
        "lines": [line(place) for place in lines],
    }


def _memory(report: ProgramReport) -> dict[str, Any]:
    memory = report.memory
    total = memory.total
    return {
        "arguments": total.arguments,
        "outputs": total.outputs,
        "aliased": total.aliased,
        "temporaries": total.temporaries,
        "code": total.code,
        "peak": total.peak,
        "capacity": memory.capacity,
        "fits": memory.fits,
        "over_time": [{"op": report.hlo.entry.ops[at].name if at < len(report.hlo.entry.ops) else None, "bytes": used}
                      for at, used in memory.over_time],
        "largest": [
            {"op": temporary.op, "array": temporary.type, "bytes": temporary.bytes, "line": line(temporary.line)}
            for temporary in memory.temporaries[:20]
        ],
    }  # fmt: skip
