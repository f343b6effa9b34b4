"""The cost of a step, one for all views: the fields of a program in a cost report (docs/tpu-report.md).

They are libtpu's where it is installed, else the model's, and always those of the module after the TPU's passes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from lazytpu.inspection.modules import ModuleTime, module_times
from lazytpu.inspection.step.history import PassChange, history
from lazytpu.inspection.step.model import Model, computing
from lazytpu.inspection.step.reading import StepOp, StepProgram, read
from lazytpu.inspection.tpu.compiling import ask
from lazytpu.passes.generations import GENERATIONS

FIELDS = (
    *("topology", "seconds", "complete", "exposed_seconds", "matrix_unit", "traffic"),
    *("ops", "timeline", "path", "memory", "advice"),
)
"Fields of a program in a report that the views show."


@dataclass(frozen=True)
class CostedStep:
    """A step after its passes, its `cost` on a chip of `generation`, and the changes by each pass.

    `pipeline` are the passes that were run to show it; None if it is shown as its process compiled it.
    """

    step: StepProgram
    cost: Mapping[str, Any]
    generation: str
    changes: Sequence[PassChange] = ()
    pipeline: str | None = None

    @property
    def source(self) -> str:
        """The origin of the figures."""
        return self.cost["compiler"] or "a model of the chip (libtpu is not asked; its own figures are nearer)"

    @cached_property
    def by_place(self) -> dict[str, list[Mapping[str, Any]]]:
        """The ops of the cost by source line, most expensive line first; "" for ops that belong to no line. A line has
        none if its ops are fused into other lines' ops."""
        ops: dict[str, list[Mapping[str, Any]]] = {place: [] for place in self.count_of}
        for op in self.cost["ops"]:  # most expensive first
            ops.setdefault(place_of(op["line"]), []).append(op)
        return dict(sorted(ops.items(), key=lambda item: -seconds_of(item[1])))

    @cached_property
    def modules(self) -> list[ModuleTime]:
        """The modules with their times, in the order of their tree."""
        lines = [(op["line"] or {}, op["seconds"] or 0.0) for op in self.cost["ops"]]
        times = ((line.get("module", ""), line.get("backward", False), seconds) for line, seconds in lines)
        return module_times(chain(((op.module, op.backward, 0.0) for op in self.step.all_ops), times))

    @cached_property
    def count_of(self) -> Counter[str]:
        """The number of the step's ops by source line."""
        return Counter(op.place for op in self.step.all_ops)

    @cached_property
    def op_seconds(self) -> list[float]:
        """Seconds of each op of the step: its share of its line's time, in proportion to its arithmetic."""
        facts, weights = GENERATIONS[self.generation], dict[str, float]()
        for op in self.step.all_ops:
            weights[op.place] = weights.get(op.place, 0.0) + _weight(op, facts)
        per_weight = {place: seconds_of(self.by_place[place]) / weight for place, weight in weights.items()}

        def seconds(op: StepOp) -> float:
            inside = sum(seconds(inner) for region in op.regions for inner in region.ops)
            return inside + _weight(op, facts) * per_weight[op.place]

        return [seconds(op) for op in self.step.ops]


def costed(
    text: str,
    name: str,
    generation: str,
    *,
    passes: str | None = None,
    by_model: bool = False,
    cost: Mapping[str, Any] | None = None,
) -> CostedStep:
    """Return the step of a module's text, after `passes` ("" for none, None for the generation's), with its `cost` if
    that is known.

    Raises ValueError for a text that is no module of the dialect, or that a pass or the compiler rejects.
    """
    changes, pipeline, optimised = [], generation if passes is None else passes, text
    if pipeline:
        changes, optimised = history(text, pipeline, name)
    step = read(optimised, name)
    if cost is None and not by_model and (report := ask(text, generation, name=name, passes=passes)) is not None:
        (cost,) = report.as_dict()["programs"]
    if cost is None:
        cost = Model(step, GENERATIONS[generation]).as_dict()
    return CostedStep(step, cost, generation, changes, pipeline or None)


def program_of(text: str, name: str) -> dict[str, Any]:
    """Return the program `name` of a report in JSON, else its first one. Raises ValueError if the text is not such a
    report."""
    try:
        programs = json.loads(text)["programs"]
        program = next((entry for entry in programs if entry["name"] == name), programs[0])
        return {"compiler": "the TPU's compiler"} | program | {field: program[field] for field in FIELDS}
    except (ValueError, KeyError, IndexError, TypeError) as error:
        reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"this is not a report of `lazytpu-show cost --json FILE`: {reason}") from error


def seconds_of(ops: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of ops of a cost; unknown ones, which the views report, count as 0."""
    return sum(op["seconds"] or 0.0 for op in ops)


def place_of(line: Mapping[str, Any] | None) -> str:
    """Return a line as shown to users, "train.py:41 (backward)"; empty for None."""
    return "" if line is None else f"{line['file']}:{line['line']}" + (" (backward)" if line["backward"] else "")


def _weight(op: StepOp, facts: Any) -> float:
    return max(computing(op, facts), 1e-15)
