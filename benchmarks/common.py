"""What the benchmarks share: their options, their rows, and how rows are shown and kept as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from lazytpu.inspection.highlight import console


@dataclass(frozen=True)
class Row:
    """One figure. `target` is the most (with `least`, the least) that it may be; None for figures that only inform."""

    measure: str
    value: float
    unit: str
    target: float | None = None
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is met; true without one."""
        return self.target is None or (self.value >= self.target if self.least else self.value <= self.target)


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has; `doc` is its module's docstring."""
    made = argparse.ArgumentParser(
        f"benchmarks/{name}.py", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    made.add_argument("--quick", action="store_true", help="few repetitions: whether it works, not how fast")
    return made


def finish(name: str, rows: Sequence[Row], args: argparse.Namespace, *, wide: bool = False) -> int:
    """Show the rows, and write them to `args.json`. The exit status: 1 when a target is missed, unless quick.

    `wide` is for measures of the form "thing: column": on a page they get a table of their own, with these columns."""
    console().print(table([(name, row) for row in rows]))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"benchmark": name, "quick": args.quick, "machine": machine(), "rows": [asdict(row) for row in rows]}
        if wide:
            found["wide"] = True
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if args.quick or all(row.met for row in rows) else 1


def table(rows: Sequence[tuple[str, Row]]) -> Table:
    """(benchmark, row) pairs as a table."""
    made = Table("benchmark", "measure", box=None, pad_edge=False)
    for column in ("figure", "target"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("")
    before = ""
    for name, row in rows:
        verdict = "" if row.target is None else "met" if row.met else "[red]missed[/red]"
        made.add_row("" if name == before else name, row.measure, figure(row), target(row), verdict)
        before = name
    return made


def figure(row: Row) -> str:
    """The value with its unit."""
    return f"{_number(row.value)} {row.unit}".strip()


def target(row: Row) -> str:
    """The target with its unit, or nothing."""
    if row.target is None:
        return ""
    return f"{'≥' if row.least else '≤'} {_number(row.target)} {row.unit}".strip()


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def machine() -> dict[str, Any]:
    """What figures depend on, beside the code."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "jaxlib": version("jaxlib"),
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def compile_at_once() -> None:
    """For figures of the steady state: programs are compiled before their first use, and torch takes one core."""
    import torch

    import lazytpu

    lazytpu.options.background_compile = 0
    torch.set_num_threads(1)


def smallest(measure: Callable[[], float], repeats: int) -> float:
    """The smallest of several measurements: what the code costs when nothing disturbs it."""
    return min(measure() for _ in range(repeats))


def process_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def exit_with(main: Callable[[], int]) -> None:
    """Run a benchmark as a script."""
    sys.exit(main())
