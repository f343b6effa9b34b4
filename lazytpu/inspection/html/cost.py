"""The times and memory in the page's data from a cost report (`lazytpu-show cost --json`) instead of the model."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

LARGEST = 12
"Maximum number of values listed at the peak of memory."


def program_of(text: str, name: str) -> dict[str, Any]:
    """Return the program `name` of a report in JSON, else its first one. Raises ValueError if the text is not such a
    report."""
    try:
        programs = json.loads(text)["programs"]
        program = next((entry for entry in programs if entry["name"] == name), programs[0])
        by_compiler(program, defaultdict(int))  # checks that it has all fields that the page shows
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"this is not a report of `lazytpu-show cost --json FILE`: {type(error).__name__}: {error}"
        ) from error
    return program


def by_compiler(program: Mapping[str, Any], places: dict[str, int]) -> dict[str, Any]:
    """Return the same data as `data.by_model`, from a program of a report (docs/tpu-report.md describes its fields)."""
    memory, ops = program["memory"], {op["name"]: op for op in program["ops"]}
    return {
        "summary": {
            "complete": program["complete"],
            "seconds_us": 1e6 * program["seconds"],
            "exposed_us": 1e6 * program["exposed_seconds"],
            "peak": memory["peak"],
            "capacity": memory["capacity"],
            "utilisation": program["matrix_unit"]["utilisation"],
            "generation": program["topology"],
            "kernels": len(program["ops"]),
            "by": "compiler",
            "source": program.get("compiler", "the TPU's compiler"),
        },
        "timeline": [_box(span, ops.get(span["op"]), places) for span in program["timeline"]],
        "lines": _lines(program["ops"], places),
        "memory": _memory(program),
        "alive": [
            [f"{value['array']} {_place(value['line'])}".strip(), value["bytes"], -1]
            for value in memory["largest"][:LARGEST]
        ],
        "advice": [[entry["text"], entry["fix"], _place(entry["line"])] for entry in program["advice"]],
    }


def _box(span: Mapping[str, Any], op: Mapping[str, Any] | None, places: dict[str, int]) -> list[Any]:
    label, place, kind = span["op"], "", span["op"]
    if op is not None:
        label, place, kind = f"{op['opcode']} {op['name']}, bound by {op['bound']}", _place(op["line"]), _kind(op)
    lane = "transfers" if span["lane"] == "dma" else span["lane"]
    return [lane, 1e6 * span["start"], 1e6 * span["end"], label, places[place], -1, kind]


def _lines(ops: list[Mapping[str, Any]], places: dict[str, int]) -> list[list[Any]]:
    by_place: dict[str, list[Mapping[str, Any]]] = {}
    for op in ops:  # most expensive first
        by_place.setdefault(_place(op["line"]), []).append(op)
    rows: list[list[Any]] = []
    for place, ops in by_place.items():
        seconds = sum(op["seconds"] or 0.0 for op in ops)  # null means unknown, which the head of the page reports
        rows.append([places[place], round(1e6 * seconds, 3), len(ops), _kind(ops[0])])
    return sorted(rows, key=lambda row: -row[1])


def _memory(program: Mapping[str, Any]) -> list[list[Any]]:
    """Return (time, bytes) points. An op without a time takes the time of the previous one."""
    starts = {span["op"]: 1e6 * span["start"] for span in reversed(program["timeline"])}
    rows: list[list[Any]] = []
    now = 0.0
    for point in program["memory"]["over_time"]:
        now = max(now, starts.get(point["op"], now))
        rows.append([now, point["bytes"]])
    return rows


def _kind(op: Mapping[str, Any]) -> str:
    """Return the kind by which the page colours an op; a fusion's name lists its contents ("reduce_fusion.3")."""
    return "dot" if op["bound"] == "matrix unit" else op["name"]


def _place(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line['file']}:{line['line']}" + (" (backward)" if line["backward"] else "")
