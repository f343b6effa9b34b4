"""lazytpu-show lines, graph, path, passes and why."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from lazytpu.inspection.graphs import ProgramGraph, Texts
from lazytpu.inspection.show import main
from lazytpu.inspection.tpu import compiling
from lazytpu.inspection.tpu.report import TpuReport
from lazytpu.passes import unregister
from lazytpu.runtime.errors import CompileError
from tests.inspection.step.samples import CLUSTERS, MODULES, STEP
from tests.inspection.tpu.recorded import report


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "004-step.imported.mlir"
    path.write_text(STEP)
    (tmp_path / "004-step.why.txt").write_text("a dtype changed\n      - old\n")
    return path


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda: False)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_lines(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, columns, *rows = shown(capsys, "lines", step)
    assert head.startswith("004-step.imported.mlir: ") and " us on a v6e, by a model of the chip" in head
    assert columns.split() == ["line", "us", "%", "ops", "bytes", "of", "results"]
    lines = [row.split("  ")[0] for row in rows]
    # Waiting for memory belongs to no line. The update belongs to the line of its gradient's product, with which it is
    # fused.
    assert sorted(lines[:2]) == ["model.py:5", "model.py:5 (backward)"]
    assert lines[2:] == ["train.py:9", "no source line", "train.py:11"]
    assert len(shown(capsys, "lines", step, "-n", "2", "--generation", "v5e")) == 4


def test_lines_use_the_compiler_where_it_is_installed(
    step: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def report_text(text: str, topology: str, *, name: str, passes: str | None) -> TpuReport:
        assert passes is None
        asked.append((topology, name))
        return TpuReport(topology, (report("step"),))

    monkeypatch.setattr(compiling, "installed", lambda: True)
    monkeypatch.setattr(compiling, "report_text", report_text)
    head, _, *rows = shown(capsys, "lines", step, "--generation", "v5p")
    assert asked == [("v5p:2x2x1", "004-step")]
    assert head == f"004-step.imported.mlir: 6.6 us on a v5p, by libtpu {metadata.version('libtpu')}"
    assert rows[0].split()[:3] == ["train.py:10", "2.2", "33"]
    assert "by a model of the chip" in shown(capsys, "lines", step, "--model")[0] and len(asked) == 1


def test_every_view_has_the_same_time(
    step: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the compiler where it is installed, else by the model of the module after the TPU's passes."""
    for installed in (False, True):
        monkeypatch.setattr(compiling, "installed", lambda installed=installed: installed)
        monkeypatch.setattr(compiling, "report_text", lambda *_, **__: TpuReport("v6e:2x2", (report("step"),)))
        heads = [shown(capsys, command, step)[0].split(";")[0] for command in ("lines", "path")]
        assert main(["html", str(step), "-o", str(step.with_name("a.html"))]) == 0
        graph = ProgramGraph(0, "step", 9, Texts(STEP, "", ()))
        graph.save_html(step.with_name("b.html"))
        pages = [step.with_name(name).read_text() for name in ("a.html", "b.html")]
        (us,) = {re.search(r'"seconds_us":([0-9.]+)', page)[1] for page in pages}  # type: ignore[index]
        (head,) = set(heads)
        assert f" {float(us):,.1f} us on a v6e, by {'libtpu' if installed else 'a model'}" in head
        assert (f"{report('step').seconds * 1e6:.3f}" == f"{float(us):.3f}") == installed
        capsys.readouterr()


def test_a_refusal_of_the_compiler_is_reported(
    step: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_text(*_: object, **__: object) -> TpuReport:
        raise CompileError("step", "it died")

    monkeypatch.setattr(compiling, "installed", lambda: True)
    monkeypatch.setattr(compiling, "report_text", report_text)
    assert main(["lines", str(step)]) == 2
    assert "it died; --model asks no compiler" in capsys.readouterr().err


def test_graph(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys, "graph", step)
    assert [row.split("  (")[0].split(None, 1)[1] for row in rows] == [
        "model.py:5", "train.py:9", "model.py:5 (backward)", "train.py:11",
    ]  # fmt: skip
    assert rows[0].endswith("-> 1, 2") and rows[2].endswith("-> 3")


def test_graph_of_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clusters.mlir"
    path.write_text(CLUSTERS)
    rows = shown(capsys, "graph", path)
    assert [row.split("  (")[0].split(None, 1)[1] for row in rows] == ["cluster_0 #0", "cluster_0 #1", "model.py:6"]
    assert len(shown(capsys, "graph", path, "--by", "op")) == 5


def test_clusters(tmp_path: Path, step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clusters.mlir"
    path.write_text(CLUSTERS)
    _, head, _, row = shown(capsys, "clusters", path)
    assert head.startswith("2 calls of 1 functions; ")
    assert row.split()[:3] == ["cluster_0", "2", "2"] and row.split()[5:] == ["model.py:2,", "model.py:3"]
    assert main(["clusters", str(step)]) == 2
    assert "calls no function; `lazytpu-opt -p cluster-fusion " in capsys.readouterr().err


def test_dot(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys, "graph", step, "--dot")
    assert rows[0] == 'digraph "004-step.imported.mlir" {' and rows[-1] == "}"
    assert any(row.startswith(r'  n0 [label="model.py:5\n3 ops, ') for row in rows)
    assert "  n0 -> n2" in [row.split(" [")[0] for row in rows]


def test_path(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, *rows = shown(capsys, "path", step)
    assert "in 2 kernels" in head
    assert [row.split()[0] for row in rows] == ["dot_general.0", "dot_general.2"]
    assert shown(capsys, "path", step, "-n", "1")[-1] == "1 cheaper ones are left out (-n 0 shows all)"


def test_passes(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, *rows = shown(capsys, "passes", step, "-p", "dce,constant-folding")
    assert [row.split()[0] for row in rows] == ["dce", "constant-folding"]
    step.write_text(STEP.replace("func.return", "%7 = lazytpu.sin %6 : tensor<256x128xf32>\nfunc.return"))
    rows = shown(capsys, "passes", step, "-p", "dce", "--diff", "dce")
    assert rows[1].endswith("-1 sin") and "-     %7 = lazytpu.sin %6 : tensor<256x128xf32>" in rows


def test_passes_of_a_file(step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from xdsl.passes import ModulePass\nfrom lazytpu.passes import register\n"
        '@register("mine")\nclass Mine(ModulePass):\n    def apply(self, ctx, op):\n        pass\n'
    )
    try:
        _, row = shown(capsys, "passes", step, "--load", tmp_path / "mine.py", "-p", "mine")
    finally:
        unregister("mine")
    assert row.split()[0] == "mine"


def test_why(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (step, step.parent, step.with_name("004-step.why.txt")):
        assert shown(capsys, "why", path) == ["004-step: a dtype changed", "      - old"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["graph", "--by", "colour"], "line, cluster, op, not by 'colour'"),
        (["passes", "-p", "dce", "--diff", "cse"], "no pass named cse ran; those that did are dce"),
        (["passes", "-p", "fuse"], "no pass named 'fuse'"),
    ],
)
def test_errors(arguments: list[str], message: str, step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([arguments[0], str(step), *arguments[1:]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["lines", "passes", "graph", "path", "clusters"])
def test_a_folder_stands_for_its_largest_module(
    command: str, tmp_path: Path, step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "005-step.imported.mlir").write_text("builtin.module {}")
    kind = "lazytpu" if command == "clusters" else "imported"
    assert kind == "imported" or main([command, str(tmp_path)]) == 2, "the module as it was compiled"
    file = step if kind == "imported" else tmp_path / "006-step.lazytpu.mlir"
    file.write_text(STEP if kind == "imported" else CLUSTERS)
    capsys.readouterr()
    assert _untimed(shown(capsys, command, tmp_path)) == _untimed(shown(capsys, command, file))


def _untimed(rows: list[str]) -> list[str]:
    """Return the rows without the milliseconds of passes, and without their effect on the columns' widths."""
    return [" ".join(re.sub(r"\d+\.\d+", "", row).split()) for row in rows]


def test_no_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(tmp_path)]) == 2
    assert "LAZYTPU_DUMP=DIR writes one" in capsys.readouterr().err


def test_modules_that_share_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.lazytpu.mlir"
    path.write_text(MODULES)
    rows = shown(capsys, "lines", path)
    tree = rows[next(i for i, row in enumerate(rows) if row.startswith("module")) + 1 :]
    assert sorted(row.split()[0] for row in tree) == [
        "blocks", "blocks.0", "blocks.0.act", "blocks.1", "blocks.1.act",
    ]  # fmt: skip
    assert tree[0].startswith("blocks  ") and tree[1].startswith("  blocks.")
    figures = {row.split()[0]: [float(text) for text in row.split()[1:]] for row in tree}
    assert figures["blocks"][0] == pytest.approx(figures["blocks.0"][0] + figures["blocks.1"][0], abs=0.11)
    assert figures["blocks.1.act"][3] > 0, "backward"
    assert figures["blocks.0"][3] == 0
