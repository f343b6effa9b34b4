"""The times and memory of the page's data by a cost report (`lazytpu-show cost --json`) instead of the model."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

LARGEST = 12
"The most values listed at the peak of memory."


def program_of(text: str, name: str) -> dict[str, Any]:
    """The program `name` of a report as JSON, else its first. Raises ValueError if the text is not such a report."""
    try:
        programs = json.loads(text)["programs"]
        program = next((entry for entry in programs if entry["name"] == name), programs[0])
        by_compiler(program, defaultdict(int))  # it needs all the fields that the page shows
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"this is not a report of `lazytpu-show cost --json FILE`: {type(error).__name__}: {error}"
        ) from error
    return program


def by_compiler(program: Mapping[str, Any], places: dict[str, int]) -> dict[str, Any]:
    """What `data.by_model` gives, by a program of a report (docs/tpu-report.md describes its fields)."""
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
    what, place, kind = span["op"], "", span["op"]
    if op is not None:
        what, place, kind = f"{op['opcode']} {op['name']}, bound by {op['bound']}", _place(op["line"]), _kind(op)
    lane = "transfers" if span["lane"] == "dma" else span["lane"]
    return [lane, 1e6 * span["start"], 1e6 * span["end"], what, places[place], -1, kind]


def _lines(ops: list[Mapping[str, Any]], places: dict[str, int]) -> list[list[Any]]:
    by_place: dict[str, list[Mapping[str, Any]]] = {}
    for op in ops:  # the most expensive first
        by_place.setdefault(_place(op["line"]), []).append(op)
    rows: list[list[Any]] = []
    for place, ops in by_place.items():
        seconds = sum(op["seconds"] or 0.0 for op in ops)  # null: unknown, as the head of the page says
        rows.append([places[place], round(1e6 * seconds, 3), len(ops), _kind(ops[0])])
    return sorted(rows, key=lambda row: -row[1])


def _memory(program: Mapping[str, Any]) -> list[list[Any]]:
    """An op without a time has that of the one before."""
    starts = {span["op"]: 1e6 * span["start"] for span in reversed(program["timeline"])}
    rows: list[list[Any]] = []
    now = 0.0
    for point in program["memory"]["over_time"]:
        now = max(now, starts.get(point["op"], now))
        rows.append([now, point["bytes"]])
    return rows


def _kind(op: Mapping[str, Any]) -> str:
    """The kind that the page colours an op by; a fusion's name says what is in it ("reduce_fusion.3")."""
    return "dot" if op["bound"] == "matrix unit" else op["name"]


def _place(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line['file']}:{line['line']}" + (" (backward)" if line["backward"] else "")
