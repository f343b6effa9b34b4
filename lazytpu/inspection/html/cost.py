"""What `lazytpu-show cost --json` says of a program, as the page shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LANES = {"core": "core", "links": "links", "dma": "transfers"}

LARGEST = 12


@dataclass(frozen=True)
class Cost:
    """One program of a cost report (docs/tpu-report.md says what its fields are)."""

    program: Mapping[str, Any]
    compiler: str = "the TPU's compiler"
    "Who says so, with its version when that is known."

    @classmethod
    def parse(cls, text: str, name: str) -> Cost:
        """The program `name` of a report, or its only one. Raises ValueError when the text is no such report."""
        try:
            programs = json.loads(text)["programs"]
            found = next((each for each in programs if each["name"] == name), programs[0])
            for field in ("seconds", "complete", "timeline", "memory", "ops", "advice", "topology"):
                found[field]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"this is no report that `lazytpu-show cost --json FILE` printed: {type(error).__name__}: {error}"
            ) from error
        return cls(found)

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
        """[lane, start, end, what, place, -1, kind] of each stretch."""
        ops = {op["name"]: op for op in self.program["ops"]}
        found: list[list[Any]] = []
        for span in self.program["timeline"]:
            op = ops.get(span["op"])
            what = span["op"] if op is None else f"{op['opcode']} {op['name']}, bound by {op['bound']}"
            place = _place(op["line"]) if op is not None else ""
            lane = LANES.get(span["lane"], span["lane"])
            kind = span["op"] if op is None else _kind(op)
            found.append([lane, 1e6 * span["start"], 1e6 * span["end"], what, places[place], -1, kind])
        return found

    def lines(self, places: dict[str, int]) -> list[list[Any]]:
        """[place, time, ops, kind of the dearest op] of each source line, the dearest first."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for op in self.program["ops"]:
            found.setdefault(_place(op["line"]), []).append(op)
        rows: list[list[Any]] = []
        for place, ops in found.items():
            dearest = max(ops, key=lambda op: op["seconds"] or 0.0)
            seconds = sum(op["seconds"] or 0.0 for op in ops)  # null: unknown, and told at the head of the page
            rows.append([places[place], round(1e6 * seconds, 3), len(ops), _kind(dearest)])
        return sorted(rows, key=lambda row: -row[1])

    def memory(self) -> list[list[Any]]:
        """[time, bytes in use from then on]; ops that take no time are at that of the one before."""
        starts = {span["op"]: 1e6 * span["start"] for span in reversed(self.program["timeline"])}
        found: list[list[Any]] = []
        now = 0.0
        for each in self.program["memory"]["over_time"]:
            now = max(now, starts.get(each["op"], now))
            found.append([now, each["bytes"]])
        return found

    def largest(self) -> list[list[Any]]:
        """[what, bytes, -1] of the largest temporaries."""
        return [
            [f"{each['array']} {_place(each['line'])}".strip(), each["bytes"], -1]
            for each in self.program["memory"]["largest"][:LARGEST]
        ]

    def advice(self) -> list[list[str]]:
        """[what is so, what to do, where]."""
        return [[each["text"], each["fix"], _place(each["line"])] for each in self.program["advice"]]


def _kind(op: Mapping[str, Any]) -> str:
    """What the page colours an op by: a fusion is named by what is in it ("reduce_fusion.3")."""
    return "dot" if op["bound"] == "matrix unit" else op["name"]


def _place(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line['file']}:{line['line']}" + (" (backward)" if line["backward"] else "")
