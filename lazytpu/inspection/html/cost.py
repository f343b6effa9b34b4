"""A program of a cost report (`lazytpu-show cost --json`) in the form that the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LANES = {"core": "core", "links": "links", "dma": "transfers"}

LARGEST = 12


@dataclass(frozen=True)
class ProgramCost:
    """One program of a cost report (docs/tpu-report.md describes the fields)."""

    program: Mapping[str, Any]
    compiler: str = "the TPU's compiler"
    "The source of the figures, with its version if known."

    @classmethod
    def parse(cls, text: str, name: str) -> ProgramCost:
        """The program `name` of a report, else its first. Raises ValueError if the text is not such a report."""
        try:
            programs = json.loads(text)["programs"]
            program = next((entry for entry in programs if entry["name"] == name), programs[0])
            for field in ("seconds", "complete", "timeline", "memory", "ops", "advice", "topology"):
                program[field]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"this is not a report of `lazytpu-show cost --json FILE`: {type(error).__name__}: {error}"
            ) from error
        return cls(program)

    def summary(self) -> dict[str, Any]:
        """The figures at the head of the page."""
        memory = self.program["memory"]
        return {
            "complete": self.program["complete"],
            "seconds_us": 1e6 * self.program["seconds"],
            "exposed_us": 1e6 * self.program["exposed_seconds"],
            "peak": memory["peak"],
            "capacity": memory["capacity"],
            "utilisation": self.program["matrix_unit"]["utilisation"],
            "generation": self.program["topology"],
            "kernels": len(self.program["ops"]),
            "by": "compiler",
        }

    def timeline(self, places: dict[str, int]) -> list[list[Any]]:
        """[lane, start, end, what, place, -1, kind] of each span."""
        ops = {op["name"]: op for op in self.program["ops"]}
        rows: list[list[Any]] = []
        for span in self.program["timeline"]:
            op = ops.get(span["op"])
            what = span["op"] if op is None else f"{op['opcode']} {op['name']}, bound by {op['bound']}"
            place = _place(op["line"]) if op is not None else ""
            lane = LANES.get(span["lane"], span["lane"])
            kind = span["op"] if op is None else _kind(op)
            rows.append([lane, 1e6 * span["start"], 1e6 * span["end"], what, places[place], -1, kind])
        return rows

    def lines(self, places: dict[str, int]) -> list[list[Any]]:
        """[place, time, ops, kind of the most expensive op] of each source line, most expensive first."""
        by_place: dict[str, list[Mapping[str, Any]]] = {}
        for op in self.program["ops"]:
            by_place.setdefault(_place(op["line"]), []).append(op)
        rows: list[list[Any]] = []
        for place, ops in by_place.items():
            dearest = max(ops, key=lambda op: op["seconds"] or 0.0)
            seconds = sum(op["seconds"] or 0.0 for op in ops)  # null: unknown, as the head of the page says
            rows.append([places[place], round(1e6 * seconds, 3), len(ops), _kind(dearest)])
        return sorted(rows, key=lambda row: -row[1])

    def memory(self) -> list[list[Any]]:
        """[time, bytes in use from then on]; an op without a time has that of the one before."""
        starts = {span["op"]: 1e6 * span["start"] for span in reversed(self.program["timeline"])}
        rows: list[list[Any]] = []
        now = 0.0
        for point in self.program["memory"]["over_time"]:
            now = max(now, starts.get(point["op"], now))
            rows.append([now, point["bytes"]])
        return rows

    def largest(self) -> list[list[Any]]:
        """[what, bytes, -1] of the largest temporaries."""
        return [
            [f"{entry['array']} {_place(entry['line'])}".strip(), entry["bytes"], -1]
            for entry in self.program["memory"]["largest"][:LARGEST]
        ]

    def advice(self) -> list[list[str]]:
        """[finding, fix, source line]."""
        return [[entry["text"], entry["fix"], _place(entry["line"])] for entry in self.program["advice"]]


def _kind(op: Mapping[str, Any]) -> str:
    """The kind that the page colours an op by; a fusion's name says what is in it ("reduce_fusion.3")."""
    return "dot" if op["bound"] == "matrix unit" else op["name"]


def _place(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line['file']}:{line['line']}" + (" (backward)" if line["backward"] else "")
