"""The page's data as JSON: times in microseconds, sizes in bytes, ops and places by number.

It uses short lists rather than objects, so that a step of 5,000 ops takes 1 MB.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from typing import Any

from lazytpu.inspection.html.cost import LARGEST, by_compiler
from lazytpu.inspection.step.graphs import OpGroup, grouped
from lazytpu.inspection.step.history import PassChange
from lazytpu.inspection.step.model import Model
from lazytpu.inspection.step.reading import StepOp

DIFF_LINES = 4_000
"Maximum number of lines that the page shows of one pass's diff."


def page_data(
    model: Model, changes: Sequence[PassChange] = (), *, why: str | None = None, cost: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all data of a step. `changes` are the changes by its passes. With `cost`, a program of the TPU compiler's
    report, times and memory are the compiler's."""
    step = model.step
    places = _Numbering()
    ops = [
        [op.kind, op.type, places[op.place], _us(model.op_seconds[op.number]), op.bytes, model.kernel_of[op.number],
         op.cluster, op.text, list(op.operands)]
        for op in step.ops
    ]  # fmt: skip
    figures = by_model(model, places) if cost is None else by_compiler(cost, places)
    return figures | {
        "name": step.name,
        "summary": figures["summary"] | {"path_us": _us(sum(kernel.seconds for kernel in model.critical_path))},
        "why": why,
        "arguments": [
            [a.name, a.type, a.bytes, a.update if a.update is None else step.results[a.update]] for a in step.arguments
        ],
        "ops": ops,
        "places": places.names,
        "sources": [_source(name) for name in places.names],
        "graph": _graph(model, figures["lines"], places if cost is not None else {}),
        "passes": [_change(change) for change in changes],
    }


def by_model(model: Model, places: dict[str, int]) -> dict[str, Any]:
    """Return the times and memory of the model.

    - `timeline`: [lane, start, end, label, place, op, kind].
    - `lines`: [place, time, ops, kind of the most expensive op], most expensive first.
    - `memory`: [time, bytes alive from then on].
    - `alive`, at the peak: [label, bytes, op].
    - `advice`: [finding, fix, source line].

    An op is -1 if unknown.
    """
    memory = model.memory or [sum(argument.bytes for argument in model.step.arguments)]
    alive = model.alive(memory.index(max(memory)))
    return {
        "summary": {
            "complete": True,
            "seconds_us": _us(model.seconds),
            "exposed_us": _us(model.exposed),
            "peak": max(memory),
            "capacity": model.facts.device_hbm_bytes,
            "generation": model.facts.name,
            "kernels": len(model.kernels),
            "by": "model",
            "source": "a model of the chip (lazytpu-show cost --json asks the compiler)",
        },
        "timeline": [
            [k.lane, _us(k.start), _us(k.end), k.title, places[k.main.place], k.main.number, k.main.kind]
            for k in model.kernels
        ],
        "lines": _lines(model, places),
        "memory": [[_us(kernel.start), used] for kernel, used in zip(model.kernels, memory)],
        "alive": [
            [f"{op.kind} {op.place}", op.bytes, op.number]
            for op in sorted(alive, key=lambda op: -op.bytes)[:LARGEST]
            if op.bytes
        ],
        "advice": [],
    }


class _Numbering(dict[str, int]):
    """A dictionary that numbers texts in the order of their first use."""

    def __missing__(self, key: str) -> int:
        self[key] = len(self)
        return self[key]

    @property
    def names(self) -> list[str]:
        return list(self)


def _source(place: str) -> str:
    """Return the source text at a place such as "train.py:41 (backward)"; empty if the file is not there."""
    file, _, line = place.removesuffix(" (backward)").rpartition(":")
    return linecache.getline(file, int(line)).strip()[:160] if line.isdigit() else ""


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _lines(model: Model, places: dict[str, int]) -> list[list[Any]]:
    by_place: dict[str, list[StepOp]] = {"": []} if "" in model.by_line else {}
    for op in model.step.all_ops:
        by_place.setdefault(op.place, []).append(op)
    outermost = set(map(id, model.step.ops))
    rows: list[list[Any]] = []
    for place, ops in by_place.items():
        timed = [op for op in ops if id(op) in outermost]
        costliest = max(timed, key=lambda op: model.op_seconds[op.number], default=ops[0] if ops else None)
        rows.append([places[place], _us(model.by_line.get(place, 0.0)), len(ops), costliest.kind if costliest else ""])
    return sorted(rows, key=lambda row: -row[1])


def _graph(model: Model, lines: list[list[Any]], places: dict[str, int]) -> dict[str, Any]:
    """Return nodes [name, ops, time, kind of the most expensive op] in order, and edges [from, to, bytes].

    Time and kind come from `lines` for lines among `places`, else from the model.
    """
    by = "cluster" if model.step.clusters else "line"
    times = {place: (us, kind) for place, us, _, kind in lines}
    graph: Any = grouped(model, by)

    def work(group: OpGroup) -> tuple[float, str]:
        kind = model.step.ops[group.costliest].kind
        return times.get(places[group.name], (0.0, kind)) if group.name in places else (_us(group.seconds), kind)

    groups: list[OpGroup] = [graph.nodes[node]["group"] for node in graph]
    return {
        "by": by,
        "nodes": [[group.name, group.ops, *work(group)] for group in groups],
        "edges": [[a, b, data["bytes"]] for a, b, data in graph.edges(data=True)],
    }


def _change(change: PassChange) -> dict[str, Any]:
    shown = change.lines[:DIFF_LINES]
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
