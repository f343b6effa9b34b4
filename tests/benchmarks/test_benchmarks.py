"""The benchmarks run, each alone, and their figures come together in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import zygote

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SHARED = ("common", "host_time", "language", "table", "workloads")
NEWCOMERS = sorted(path.stem for path in (FOLDER / "newcomers").glob("*.py") if path.stem != "clock")
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


def run(*arguments: str, status: int = 0) -> str:
    """Standard output of a script of benchmarks/."""
    done = zygote.run(arguments, cwd=FOLDER.parent, timeout=600)
    assert done.returncode == status, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "control_flow" else pytest.mark.long) for name in NAMES]
)
def test_benchmark_runs_alone_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    file = tmp_path / "made" / f"{name}.json"
    shown = run(f"benchmarks/{name}.py", "--quick", "--json", str(file))
    figures = json.loads(file.read_text())
    assert figures["benchmark"] == name
    assert figures["rows"] and all(row["value"] >= 0 for row in figures["rows"])
    assert figures["rows"][0]["measure"].split()[0] in shown
    if name == "control_flow":
        assert figures["rows"][0]["value"] == 8, "one program for each path"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "bert" else ()) for name in NEWCOMERS]
)
def test_newcomer_scripts_time_their_steps(name: str) -> None:
    """On the CPU, where they need no program; importing transformers takes seconds."""
    report = json.loads(run(f"benchmarks/newcomers/{name}.py", "cpu", "3").splitlines()[-1])
    ends = report["ends"]
    assert len(ends) == 3 and 0 < ends[0] < ends[1] < ends[2] <= report["whole"]
    assert report["compiles"] == report["cache_hits"] == 0


def test_first_minute_benchmark_runs_all_scripts() -> None:
    assert run("benchmarks/first_minute.py", "--only", "none,such", status=2) == ""
    text = (FOLDER / "first_minute.py").read_text()
    assert all(f'"{name}"' in text for name in NEWCOMERS)


def results(folder: Path, value: float, quick: bool = False) -> None:
    """The file of a benchmark with one figure, whose target is 2."""
    row = {"measure": "cut", "value": value, "unit": "µs", "target": 2.0, "least": False}
    machine = {"cpu": "a CPU", "cores": 2, "python": "3.11", "torch": "2.13", "jaxlib": "0.10", "date": "2026-01-01"}
    figures = {"benchmark": "cuts", "quick": quick, "machine": machine, "rows": [row]}
    (folder / "cuts.json").write_text(json.dumps(figures))


def test_table_is_written_between_the_markers_of_a_page(tmp_path: Path) -> None:
    results(tmp_path, 1.5)
    page = tmp_path / "performance.md"
    begin = "<!-- figures: python benchmarks/table.py --write docs/performance.md -->"
    page.write_text(f"before\n{begin}\nold\n<!-- end of figures -->\nafter\n")
    shown = run("benchmarks/table.py", str(tmp_path), "--write", str(page), status=1)
    assert "no figures of recording" in shown
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n| benchmark |") and text.endswith("<!-- end of figures -->\nafter\n")
    assert "| cuts | cut | 1.50 µs | ≤ 2 µs | met |" in text and "old" not in text


def test_wide_benchmark_has_a_separate_table(tmp_path: Path) -> None:
    results(tmp_path, 1.5)
    figures = json.loads((tmp_path / "cuts.json").read_text())
    rows = [("lstm: cold", 3.0, None), ("lstm: warm", 2.5, 2.0), ("gan: warm", 1.5, 2.0)]
    figures |= {"benchmark": "first_minute", "wide": True}
    figures["rows"] = [{"measure": m, "value": v, "unit": "s", "target": t, "least": False} for m, v, t in rows]
    (tmp_path / "first_minute.json").write_text(json.dumps(figures))
    page = tmp_path / "performance.md"
    begin = "<!-- figures: python benchmarks/table.py --write docs/performance.md -->"
    page.write_text(f"{begin}\n<!-- end of figures -->")
    run("benchmarks/table.py", str(tmp_path), "--write", str(page), status=1)
    text = page.read_text()
    assert "| cuts | cut | 1.50 µs | ≤ 2 µs | met |\n\n| first_minute | cold | warm |\n|---|---:|---:|\n" in text
    assert "| lstm | 3 s | **2.50 s** |\n| gan |  | 1.50 s |\n\na CPU" in text


def test_page_on_large_jobs_has_their_benchmarks_alone(tmp_path: Path) -> None:
    results(tmp_path, 1.5)
    figures = json.loads((tmp_path / "cuts.json").read_text())
    for name in ("control_plane", "joining"):
        (tmp_path / f"{name}.json").write_text(json.dumps(figures | {"benchmark": name}))
    page = tmp_path / "scale.md"
    page.write_text("<!-- figures: python benchmarks/table.py --write docs/scale.md -->\n<!-- end of figures -->")
    run("benchmarks/table.py", str(tmp_path), "--write", str(page))
    text = page.read_text()
    assert "| joining | cut | 1.50 µs | ≤ 2 µs | met |" in text and "| control_plane |" in text
    assert "cuts" not in text


def test_missed_target_is_shown(tmp_path: Path) -> None:
    results(tmp_path, 3.0)
    assert "missed" in run("benchmarks/table.py", str(tmp_path), status=1)


def test_quick_figures_are_not_written_to_a_page(tmp_path: Path) -> None:
    results(tmp_path, 1.0, quick=True)
    page = tmp_path / "page.md"
    page.write_text("a page")
    run("benchmarks/table.py", str(tmp_path), "--write", str(page), status=1)
    assert page.read_text() == "a page"


def test_missing_results_are_reported(tmp_path: Path) -> None:
    run("benchmarks/table.py", str(tmp_path), status=1)


@pytest.mark.parametrize("page", ["performance.md", "scale.md"])
def test_page_has_the_markers(page: str) -> None:
    text = (FOLDER.parent / "docs" / page).read_text()
    assert text.count(f"<!-- figures: python benchmarks/table.py --write docs/{page} -->") == 1
    assert text.count("<!-- end of figures -->") == 1
