"""Runs tests on every combination of Python, torch, jax and xDSL of `lazytpu.versions`, each in an environment of its
own, and writes the table of the README.

    python -m tools.versions [NAME ...]     # such as 3.11-2.14-0.10-0.74; all by default
    python -m tools.versions --table        # the README's table alone, from docs/versions.json

An environment is made once, in out/versions/NAME. A combination that cannot be had here, for want of its Python or of
a package, keeps its row of docs/versions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from datetime import date
from pathlib import Path

from lazytpu.versions import CHECKED, Combination

ROOT = Path(__file__).resolve().parents[1]
OUT, RESULTS, README = ROOT / "out/versions", ROOT / "docs/versions.json", ROOT / "README.md"
BEGIN, END = "<!-- versions: make test-versions -->\n", "<!-- /versions -->\n"
FOLDERS = "frontend aten dynamo engine runtime".split()
FIRST = "import torch; assert (torch.ones(3, device='tpu') + 1).tolist() == [2, 2, 2]"
RUNS: dict[str, list[str]] = {
    "names": ["-m", "tests.project.names"],
    "first op": ["-c", FIRST],
    "mlp.py": ["examples/mlp.py"],
    "train_gpt.py": ["examples/train_gpt.py", "--steps", "8"],
    **{
        f"tests/{folder}": ["-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not long", f"tests/{folder}"]
        for folder in FOLDERS
    },
    "conformance": ["-m", "tools.conformance", "sweep", "-k", "1", "-j", "1"],
}


def name_of(each: Combination) -> str:
    """What its environment is called."""
    return "-".join(each)


def interpreter(version: str) -> str | None:
    """A Python of that minor release: on the path, or of pyenv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return shutil.which(f"python{version}") or (str(of_pyenv[-1]) if of_pyenv else None)


def environment(each: Combination) -> Path | None:
    """The Python of an environment with that combination; None, and a line that says why, if it cannot be had."""
    folder = OUT / name_of(each)
    python, done = folder / "bin/python", folder / ".installed"
    if done.exists():
        return python
    found = interpreter(each.python)
    if found is None:
        print(f"{each}: there is no Python {each.python}")
        return None
    subprocess.run([found, "-m", "venv", "--clear", str(folder)], check=True)
    pins = folder / "constraints.txt"
    libraries = {"torch": each.torch, "jax": each.jax, "jaxlib": each.jax, "xdsl": each.xdsl}
    pins.write_text("".join(f"{library}=={version}.*\n" for library, version in libraries.items()))
    install = [str(python), "-m", "pip", "install", "-q", "--no-compile", "-c", str(pins), "-e", f"{ROOT}[test]"]
    asked = subprocess.run(install, capture_output=True, text=True)
    if asked.returncode:
        print(f"{each}: {asked.stderr.strip().splitlines()[-1]}")
        return None
    done.touch()
    return python


def outcome(python: Path, run: str) -> str:
    """The counts of pytest's last line, or "works" or "fails". The output of the run is beside the environment."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = python.parents[1] / f"{run.replace('/', '-')}.log"
    arguments = [*RUNS[run], *(["--results", str(log.with_suffix(".jsonl"))] if run == "conformance" else [])]
    with log.open("w") as output:
        done = subprocess.run([str(python), *arguments], cwd=ROOT, env=variables, stdout=output, stderr=output)
    closing = re.findall(r"^.*\b\d+ passed.* in [\d.]+s.*$", log.read_text(), re.MULTILINE)
    counted = re.findall(r"\d+ (?:passed|failed|error)", closing[-1]) if closing else []
    return ", ".join(sorted(counted)) or ("works" if done.returncode == 0 else "fails")


def table(results: dict[str, dict[str, str]]) -> str:
    """The README's table."""
    head = ["Python", "torch", "jax", "xDSL", "checked", *(run for run in RUNS if run != "names")]
    rows = [head, ["---"] * len(head)]
    for each in CHECKED:
        found = results.get(name_of(each), {})
        rows.append([*each, found.get("date", ""), *(found.get(run, "-") for run in RUNS if run != "names")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write(results: dict[str, dict[str, str]]) -> None:
    """Put the results into docs/versions.json, and the table into the README."""
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools.versions", description=__doc__)
    parser.add_argument("names", nargs="*", help="combinations, such as 3.11-2.14-0.10-0.74")
    parser.add_argument("--table", action="store_true", help="only write the table, from docs/versions.json")
    given = parser.parse_args()
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for each in () if given.table else CHECKED:
        if given.names and name_of(each) not in given.names:
            continue
        python = environment(each)
        if python is None:
            continue
        results[name_of(each)] = {"date": str(date.today())}
        for run in RUNS:
            results[name_of(each)][run] = outcome(python, run)
            print(f"{each}: {run}: {results[name_of(each)][run]}", flush=True)
            write(results)
    write(results)


if __name__ == "__main__":
    main()
