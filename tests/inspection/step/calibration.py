"""libtpu's figures for the five steps of `steps.py`, in calibration.json. `make calibration` measures them again, in
some minutes, and prints the table of docs/inspecting.md. Lines are identified by their text, so that edits above do not
change them."""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr
from torch import Tensor

import lazytpu
from lazytpu.inspection.step.costs import costed, seconds_of
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import rehearse
from lazytpu.rehearsal.tpu_report import translated
from tests.inspection.step.steps import STEPS, training

GENERATION = "v6e"
FILE = Path(__file__).with_name("calibration.json")
SHARE = 0.01
"Of libtpu's time: lines that take less are not ranked."


def by_compiler(step: Callable[[], Tensor]) -> tuple[float, dict[str, float]]:
    """Return libtpu's microseconds of a step, and of its lines."""
    (program,) = lazytpu.tpu_report(step, topology=f"{GENERATION}:2x2").programs
    lines = {str(line): sum(cost.seconds for cost in costs) for line, costs in program.by_line.items() if line}
    return round(1e6 * program.seconds, 2), _written(lines)


def by_model(step: Callable[[], Tensor]) -> tuple[float, dict[str, float]]:
    """Return the model's microseconds of a step, and of its lines."""
    (rehearsed,) = rehearse(step)
    program = translated(rehearsed, Target.parse(GENERATION))
    cost = costed(program.text, "step", GENERATION, passes="", by_model=True)
    lines = {place: seconds_of(ops) for place, ops in cost.by_place.items() if place}
    return round(1e6 * cost.cost["seconds"], 2), _written(lines)


def _written(lines: dict[str, float]) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for place, seconds in lines.items():
        file, _, line = place.removesuffix(" (backward)").rpartition(":")
        text = linecache.getline(file, int(line)).strip() + (" (backward)" if place.endswith(" (backward)") else "")
        by_text[text] = round(1e6 * seconds, 2)
    return by_text


def compared(known: dict[str, Any], model: tuple[float, dict[str, float]]) -> tuple[float, float, int]:
    """Return the ratio of the model's time to libtpu's, the rank correlation of the lines, and their number."""
    ranked = [line for line, us in known["lines"].items() if us > SHARE * known["us"]]
    figures = [known["lines"][line] for line in ranked], [model[1].get(line, 0.0) for line in ranked]
    correlation: Any = spearmanr(*figures)
    return model[0] / known["us"], float(correlation.statistic), len(ranked)


def row(name: str, known: dict[str, Any]) -> str:
    """Return a step's row in the table of docs/inspecting.md."""
    model = known["ratio"] * known["us"]
    return f"| {name} | {known['us']:.0f} µs | {model:.0f} µs | {known['ranks']:.2f} of {known['ranked']} |"


def main() -> None:
    """Compile by libtpu, and write its figures and the comparison with the model."""
    figures: dict[str, Any] = {}
    for name in STEPS:
        step = training(name)
        us, lines = by_compiler(step)
        answer: dict[str, Any] = {"us": us, "lines": lines}
        ratio, ranks, ranked = compared(answer, by_model(step))
        figures[name] = answer | {"ratio": round(ratio, 3), "ranks": round(ranks, 3), "ranked": ranked}
        print(row(name, figures[name]), flush=True)
    FILE.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
