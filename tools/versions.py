"""Runs tests on every combination of Python, torch, jax and xDSL of `lazytpu.versions`, each in an environment of its
own, and writes the table of the README.

    python -m tools.versions [NAME ...]     # such as 3.11-2.14-0.10-0.74; all by default
    python -m tools.versions --table        # the README's table alone, from docs/versions.json

uv makes an environment once, in out/versions/NAME; its own variables (UV_INDEX, UV_FIND_LINKS, UV_OVERRIDE ...) say
where packages come from. The combination that runs this needs none. One that cannot be had here, for want of its
Python or of a package, keeps its row of docs/versions.json.
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
EVERY = {"project": 24, "frontend": 24, "aten": 24, "dynamo": 3, "engine": 24, "runtime": 12, "kernels": 4}
"""The folders of tests, and one of how many tests of each file runs."""
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
    """What its environment is called."""
    return "-".join(each)


def interpreter(version: str) -> str:
    """A Python of that minor release: of pyenv, whose commands on the path may be of none, or what uv finds."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(of_pyenv[-1]) if of_pyenv else version


def uv() -> str:
    """The command uv: on the path, or installed beside the environments."""
    own = OUT / "uv/bin/uv"
    if (found := shutil.which("uv")) or own.exists():
        return found or str(own)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(OUT / "uv"), "uv"], check=True)
    return str(own)


def environment(each: Combination) -> Path | None:
    """The Python of an environment with that combination; None, and a line that says why, if it cannot be had."""
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
    """How many tests passed and failed, or "works" or "fails". The run has a cache of programs of its own, and its
    output is in out/versions/NAME."""
    logs = OUT / name_of(each)
    logs.mkdir(parents=True, exist_ok=True)
    log, rows = (logs / f"{run.replace('/', '-')}.{kind}" for kind in ("log", "jsonl"))
    rows.unlink(missing_ok=True)
    arguments = [*RUNS[run], *(["--results", str(rows)] if run == CONFORMANCE else [])]
    with log.open("w") as output, tempfile.TemporaryDirectory() as cache:
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LAZYTPU_CACHE_DIR": cache}
        done = subprocess.run(
            [str(python), *arguments], cwd=ROOT, env={**os.environ, **own}, stdout=output, stderr=output
        )
    if rows.exists():
        return _conforming(rows)
    closing = re.findall(r"^.*\b\d+ passed.* in [\d.]+s.*$", log.read_text(), re.MULTILINE)
    counted = re.findall(r"\d+ (?:passed|failed|error)", closing[-1]) if closing else []
    return ", ".join(sorted(counted)) or ("works" if done.returncode == 0 else "fails")


def _conforming(results: Path) -> str:
    """How many entries of torch's database passed, but for what is known to be missing, and how many failed."""
    known, rows = gaps.load(), latest(results)
    failed = [
        (op, dtype)
        for (op, dtype), row in rows.items()
        if any(gaps.reason(known, op, dtype, failure["check"]) is None for failure in row["failures"])
    ]
    return (f"{len(failed)} failed, " if failed else "") + f"{len(rows) - len(failed)} passed"


def table(results: dict[str, dict[str, str]]) -> str:
    """The README's table."""
    head = ["Python", "torch", "jax", "xDSL", "checked", *(run for run in RUNS if run != "names")]
    rows = [head, ["---"] * len(head)]
    for each in CHECKED:
        found = results.get(name_of(each), {})
        rows.append([*each, found.get("date", ""), *(found.get(run, "-") for run in RUNS if run != "names")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write(found: dict[str, dict[str, str]]) -> None:
    """Add results to docs/versions.json, and put the table of all into the README."""
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, runs in found.items():
        results[name] = results.get(name, {}) | runs
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools.versions", description=__doc__)
    parser.add_argument("names", nargs="*", help="combinations, such as 3.11-2.14-0.10-0.74")
    parser.add_argument("--only", default="", help="only runs whose name has a match of this regular expression")
    parser.add_argument("--table", action="store_true", help="only write the table, from docs/versions.json")
    given = parser.parse_args()
    asked = [each for each in CHECKED if not given.names or name_of(each) in given.names]
    for each in () if given.table else asked:
        if python := environment(each):
            for run in filter(re.compile(given.only).search, RUNS):
                found = outcome(each, python, run)
                print(f"{each}: {run}: {found}", flush=True)
                write({name_of(each): {"date": str(date.today()), run: found}})
    write({})


if __name__ == "__main__":
    main()
