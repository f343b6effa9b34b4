"""The page's data as JSON: times in microseconds, sizes in bytes, ops and places by number.

It uses short lists rather than objects, so that a step of 5,000 ops takes 1 MB.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lazytpu.inspection.step.costs import CostedStep, place_of, seconds_of
from lazytpu.inspection.step.graphs import grouped, groups_of
from lazytpu.inspection.step.history import PassChange

DIFF_LINES = 4_000
"Maximum number of lines that the page shows of one pass's diff."
LARGEST = 12
"Maximum number of values listed at the peak of memory."


def page_data(costed: CostedStep, *, why: str | None = None, folders: Sequence[str] = ()) -> dict[str, Any]:
    """Return all data of a step, whose source files have paths from one of `folders` or from the current one.

    - `ops`: [kind, type, place, time, bytes, cluster, text, operands, module].
    - `timeline`: [lane, start, end, label, place, kind, module].
    - `modules`: [path, time of the forward pass, of the backward pass], each module before its parts.
    - `lines`: [place, time, ops, kind of the most expensive op, operations of products], most expensive first.
    - `roofline`: the chip's peaks, and dots: [op, place, operations, bytes of HBM, time, kind].
    - `memory`: [time, bytes in use from then on]. `alive`, at the peak: [label, bytes].
    - `advice`: [finding, fix, source line].
    """
    step, cost, places = costed.step, costed.cost, _Numbering()
    ops = [
        [op.kind, op.type, places[op.place], _us(seconds), op.bytes, op.cluster, op.text, list(op.operands), op.module]
        for op, seconds in zip(step.ops, costed.op_seconds, strict=True)
    ]
    memory, by_name = cost["memory"], {op["name"]: op for op in cost["ops"]}
    return {
        "name": step.name,
        "summary": {
            "complete": cost["complete"],
            "seconds_us": _us(cost["seconds"]),
            "exposed_us": _us(cost["exposed_seconds"]),
            "path_us": _us(sum(entry["seconds"] for entry in cost["path"])),
            "peak": memory["peak"],
            "capacity": memory["capacity"],
            "utilisation": cost["matrix_unit"]["utilisation"],
            "generation": cost["topology"],
            "kernels": len(cost["ops"]),
            "source": costed.source,
        },
        "why": why,
        "arguments": [
            [a.name, a.type, a.bytes, a.update if a.update is None else step.results[a.update]] for a in step.arguments
        ],
        "ops": ops,
        "timeline": [_box(span, by_name.get(span["op"]), places) for span in cost["timeline"]],
        "lines": [
            [
                places[place],
                _us(seconds_of(ops)),
                costed.count_of[place],
                _kind(ops[0]) if ops else "",
                sum(op["flops"] for op in ops),
            ]
            for place, ops in costed.by_place.items()
        ],
        "modules": [[module.path, _us(module.forward), _us(module.backward)] for module in costed.modules],
        "roofline": {
            "peak": cost["matrix_unit"]["peak"],
            "bandwidth": cost["traffic"]["bandwidth"],
            "dots": [
                [op["name"], places[place_of(op["line"])], op["flops"], op["bytes"], _us(op["seconds"]), _kind(op)]
                for op in cost["ops"]
                if op["flops"] and op["seconds"]
            ],
        },
        "memory": _memory(cost),
        "alive": [
            [f"{value['array']} {place_of(value['line'])}".strip(), value["bytes"]]
            for value in memory["largest"][:LARGEST]
        ],
        "advice": [[entry["text"], entry["fix"], place_of(entry["line"])] for entry in cost["advice"]],
        "graph": _graph(costed),
        "places": list(places),
        "sources": [_source(name, (*folders, "")) for name in places],
        "passes": [_change(change) for change in costed.changes],
    }


class _Numbering(dict[str, int]):
    """A dictionary that numbers texts in the order of their first use."""

    def __missing__(self, key: str) -> int:
        self[key] = len(self)
        return self[key]


def _source(place: str, folders: Sequence[str]) -> str:
    """Return the source text at a place such as "train.py:41 (backward)"; empty if no folder has the file."""
    file, _, line = place.removesuffix(" (backward)").rpartition(":")
    if not line.isdigit():
        return ""
    texts = (linecache.getline(os.path.join(folder, file), int(line)).strip()[:160] for folder in folders)
    return next(filter(None, texts), "")


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _box(span: Mapping[str, Any], op: Mapping[str, Any] | None, places: dict[str, int]) -> list[Any]:
    label, place, kind, module = span["op"], "", span["op"], ""
    if op is not None:
        label, place, kind = f"{op['opcode']} {op['name']}, bound by {op['bound']}", place_of(op["line"]), _kind(op)
        module = (op["line"] or {}).get("module", "")
    lane = "transfers" if span["lane"] == "dma" else span["lane"]
    return [lane, _us(span["start"]), _us(span["end"]), label, places[place], kind, module]


def _memory(cost: Mapping[str, Any]) -> list[list[Any]]:
    """Return (time, bytes) points. An op without a time takes the time of the previous one."""
    starts = {span["op"]: _us(span["start"]) for span in reversed(cost["timeline"])}
    rows: list[list[Any]] = []
    now = 0.0
    for point in cost["memory"]["over_time"]:
        now = max(now, starts.get(point["op"], now))
        rows.append([now, point["bytes"]])
    return rows


def _kind(op: Mapping[str, Any]) -> str:
    """Return the kind by which the page colours an op; a fusion's name lists its contents ("reduce_fusion.3")."""
    return "dot" if op["bound"] == "matrix unit" else op["name"]


def _graph(costed: CostedStep) -> dict[str, Any]:
    """Return nodes [name, ops, time, kind of the most expensive op] in order, and edges [from, to, bytes]."""
    by = "cluster" if costed.step.clusters else "line"
    graph: Any = grouped(costed, by)
    return {
        "by": by,
        "nodes": [
            [group.name, group.ops, _us(group.seconds), costed.step.ops[group.costliest].kind]
            for group in groups_of(graph).values()
        ],
        "edges": [[a, b, data["bytes"]] for a, b, data in graph.edges(data=True)],
    }


def _change(change: PassChange) -> dict[str, Any]:
    shown: Sequence[Any] = change.lines[:DIFF_LINES]
    return {
        "name": change.name,
        "ms": round(1e3 * change.seconds, 1),
        "before": change.ops_before,
        "after": change.ops_after,
        "changed": change.changed,
        "kinds": change.kinds,
        "lines": [None if line is None else [line.sign, line.text.strip()] for line in shown],
        "left_out": len(change.lines) - len(shown),
    }
