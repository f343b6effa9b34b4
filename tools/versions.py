"""Runs tests on every combination of Python, torch, jax and xDSL of `lazytpu.versions`, each in a separate environment,
and writes the table of the README.

    python -m tools.versions [NAME ...]     # such as 3.11-2.14-0.10-0.74; all by default
    python -m tools.versions --table        # only the README's table, from docs/versions.json

uv creates an environment once, in out/versions/NAME; its own variables (UV_INDEX, UV_FIND_LINKS, UV_OVERRIDE ...) name
the sources of packages. The combination of this process needs none. A combination that is not available here, for want
of its Python or of a package, keeps its row of docs/versions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from lazytpu.versions import CHECKED, Combination, installed
from tools.conformance import gaps
from tools.conformance.rows import latest

ROOT = Path(__file__).resolve().parents[1]
OUT, RESULTS, README = ROOT / "out/versions", ROOT / "docs/versions.json", ROOT / "README.md"
BEGIN, END = "<!-- versions: make test-versions -->\n", "<!-- /versions -->\n"
EVERY = {
    "project": 24, "frontend": 24, "aten": 24, "dynamo": 3, "engine": 24, "runtime": 12, "kernels": 4,
    "distributed": 16,
}
"""The folders of tests, and a folder from which only some tests of each file run."""
FIRST = "import torch; assert (torch.ones(3, device='tpu') + 1).tolist() == [2, 2, 2]"
CONFORMANCE = "conformance"
RUNS: dict[str, Sequence[str]] = {
    "names": ["-m", "tests.project.names"],
    "first op": ["-c", FIRST],
    "mlp.py": ["examples/mlp.py"],
    "train_gpt.py": ["examples/train_gpt.py", "--steps", "8"],
    **{
        f"tests/{folder}": [
            "-m",
            "pytest",
            "-m",
            "not long",
            *f"-q -n 2 --dist loadgroup --every {every} tests/{folder}".split(),
        ]
        for folder, every in EVERY.items()
    },
    CONFORMANCE: "-m tools.conformance sweep --quiet -k 1 -j 1 --every 25 --seed 5".split(),
}


def name_of(each: Combination) -> str:
    """Return the name of its environment."""
    return "-".join(each)


def interpreter(version: str) -> str:
    """Return a Python of that minor release: from pyenv, whose commands on the path may belong to none, or from uv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(of_pyenv[-1]) if of_pyenv else version


def uv() -> str:
    """The command uv: on the path, or installed beside the environments."""
    local = OUT / "uv/bin/uv"
    if (on_path := shutil.which("uv")) or local.exists():
        return on_path or str(local)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(OUT / "uv"), "uv"], check=True)
    return str(local)


def environment(each: Combination) -> Path | None:
    """Return the Python of an environment with that combination. If it is not available, print the reason and return
    None."""
    if each == installed():
        return Path(sys.executable)
    folder = OUT / name_of(each)
    python, done = folder / "bin/python", folder / ".installed"
    if done.exists():
        return python
    libraries = {"torch": each.torch, "jax": each.jax, "jaxlib": each.jax, "xdsl": each.xdsl}
    pinned = [f"{library}=={version}.*" for library, version in libraries.items()]
    for command in (
        ["venv", "--clear", "--python", interpreter(each.python), str(folder)],
        ["pip", "install", "--python", str(python), *pinned, "--editable", f"{ROOT}[test]"],
    ):
        asked = subprocess.run([uv(), *command], capture_output=True, text=True)
        if asked.returncode:
            print(f"{each}: {asked.stderr.strip()}")
            return None
    done.touch()
    return python


def outcome(each: Combination, python: Path, run: str) -> str:
    """Run tests, and return the numbers of passed and failed ones, or "works" or "fails". The run has a separate cache
    of programs, and its output is in out/versions/NAME."""
    logs = OUT / name_of(each)
    logs.mkdir(parents=True, exist_ok=True)
    log, rows = (logs / f"{run.replace('/', '-')}.{kind}" for kind in ("log", "jsonl"))
    rows.unlink(missing_ok=True)
    arguments = [*RUNS[run], *(["--results", str(rows)] if run == CONFORMANCE else [])]
    with log.open("w") as output, tempfile.TemporaryDirectory() as cache:
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LAZYTPU_CACHE_DIR": cache}
        done = subprocess.run(
            [str(python), *arguments], cwd=ROOT, env={**os.environ, **variables}, stdout=output, stderr=output
        )
    if rows.exists():
        return _conforming(rows)
    closing = re.findall(r"^.*\b\d+ passed.* in [\d.]+s.*$", log.read_text(), re.MULTILINE)
    counted = re.findall(r"\d+ (?:passed|failed|error)", closing[-1]) if closing else []
    return ", ".join(sorted(counted)) or ("works" if done.returncode == 0 else "fails")


def _conforming(results: Path) -> str:
    """Return the number of entries of torch's database that passed, except for known gaps, and of those that failed."""
    known_gaps, rows = gaps.load(), latest(results)
    failed = [
        (op, dtype)
        for (op, dtype), row in rows.items()
        if any(gaps.reason(known_gaps, op, dtype, failure["check"]) is None for failure in row["failures"])
    ]
    return (f"{len(failed)} failed, " if failed else "") + f"{len(rows) - len(failed)} passed"


def table(results: dict[str, dict[str, str]]) -> str:
    """The README's table."""
    head = ["Python", "torch", "jax", "xDSL", "checked", *(run for run in RUNS if run != "names")]
    rows = [head, ["---"] * len(head)]
    for combination in CHECKED:
        outcomes = results.get(name_of(combination), {})
        checked = [outcomes.get(run, "-") for run in RUNS if run != "names"]
        rows.append([*combination, outcomes.get("date", ""), *checked])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write(outcomes: dict[str, dict[str, str]]) -> None:
    """Add results to docs/versions.json, and put the table of all into the README."""
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, runs in outcomes.items():
        results[name] = results.get(name, {}) | runs
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    before, _, remaining = README.read_text().partition(BEGIN)
    README.write_text(f"{before}{BEGIN}{table(results)}{END}{remaining.partition(END)[2]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools.versions", description=__doc__)
    parser.add_argument("names", nargs="*", help="combinations, such as 3.11-2.14-0.10-0.74")
    parser.add_argument("--only", default="", help="only runs whose name has a match of this regular expression")
    parser.add_argument("--table", action="store_true", help="only write the table, from docs/versions.json")
    arguments = parser.parse_args()
    asked = [combination for combination in CHECKED if not arguments.names or name_of(combination) in arguments.names]
    for combination in () if arguments.table else asked:
        if python := environment(combination):
            for run in filter(re.compile(arguments.only).search, RUNS):
                outcome_text = outcome(combination, python, run)
                print(f"{combination}: {run}: {outcome_text}", flush=True)
                write({name_of(combination): {"date": str(date.today()), run: outcome_text}})
    write({})


if __name__ == "__main__":
    main()
