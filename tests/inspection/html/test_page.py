"""The page's data, and its independence of other files."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from xdsl.utils.arg_spec import parse_pipeline

from lazytpu.inspection.about import About
from lazytpu.inspection.graphs import ProgramGraph, Texts
from lazytpu.inspection.html import page as page_module
from lazytpu.inspection.html.data import page_data
from lazytpu.inspection.html.page import page
from lazytpu.inspection.show import main
from lazytpu.inspection.step.costs import program_of
from lazytpu.inspection.tpu import compiling
from lazytpu.inspection.tpu.report import TpuReport
from lazytpu.options import options
from lazytpu.passes.registry import for_target
from lazytpu.passes.target import Target
from tests.inspection.step.samples import CLUSTERS, MODULES, STEP, costed
from tests.inspection.tpu.recorded import report as recorded

LINE = {"file": "model.py", "line": 5, "backward": True}
REPORT: dict[str, Any] = {
    "schema": 2,
    "programs": [
        {
            "name": "step", "topology": "v6e:2x2", "seconds": 5e-6, "complete": True, "exposed_seconds": 1e-6,
            "matrix_unit": {"utilisation": 0.25, "peak": 1e12}, "traffic": {"bandwidth": 1e9},
            "ops": [
                {"name": "fusion.1", "opcode": "fusion", "bound": "matrix unit", "line": LINE, "seconds": 4e-6,
                 "flops": 2e6, "bytes": 100},
                {"name": "all-reduce", "opcode": "all-reduce", "bound": "links", "line": None, "seconds": 1e-6,
                 "flops": 0.0, "bytes": 0},
            ],
            "compiler": "libtpu 1.0",
            "path": [{"op": "fusion.1", "seconds": 4e-6}, {"op": "all-reduce", "seconds": 1e-6}],
            "timeline": [
                {"lane": "core", "start": 0.0, "end": 4e-6, "op": "fusion.1"},
                {"lane": "links", "start": 4e-6, "end": 5e-6, "op": "all-reduce"},
            ],
            "memory": {
                "peak": 900, "capacity": 1000, "largest": [{"array": "f32[8]", "bytes": 32, "line": LINE}],
                "over_time": [
                    {"op": "fusion.1", "bytes": 900},
                    {"op": "bitcast", "bytes": 800},
                    {"op": "all-reduce", "bytes": 700},
                ],
            },
            "advice": [{"text": "a head of 64", "fix": "use 128", "line": LINE}],
        }
    ],
}  # fmt: skip


SOURCES = Path(page_module.__file__).parent
COLOUR = re.compile(r"(--\w+): (#\w+);")


class Links(HTMLParser):
    """The resources that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "action", "data") and value and not value.startswith("#"):
                self.found.append(value)


def embedded(html: str) -> dict[str, Any]:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert script is not None
    return json.loads(script[1])


def test_the_file_fetches_nothing() -> None:
    html = page(costed(STEP))
    links = Links()
    links.feed(html)
    assert links.found == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", html)


def test_ends_of_script_elements_are_escaped() -> None:
    text = STEP.replace('lazytpu.name = "x"', 'lazytpu.name = "</script><b>&"')
    html = page(costed(text), why="</pre><script>alert(1)</script>")
    assert "</script><b>" not in html and "alert(1)</script>" not in html
    assert embedded(html)["arguments"][0][0] == "</script><b>&"


def test_data() -> None:
    data = page_data(costed(STEP))
    assert [op[0] for op in data["ops"]] == ["dot_general", "constant", "max", "reduce", "exp", "dot_general", "sub"]
    assert data["places"] == ["model.py:5", "train.py:9", "model.py:5 (backward)", "train.py:11", ""]  # "": waiting
    assert data["timeline"][0][0] == "core"
    assert data["timeline"][0][3] == "dot_general dot_general.0, bound by matrix unit"
    waiting = sum(us for place, us, *_ in data["lines"] if not data["places"][place])
    total = sum(op[3] for op in data["ops"]) + waiting
    assert data["timeline"][-1][2] == data["summary"]["seconds_us"] == pytest.approx(total, 0.01)
    arguments = sum(argument[2] for argument in data["arguments"])
    assert max(alive for _, alive in data["memory"]) + arguments == data["summary"]["peak"]
    times = [row[1] for row in data["lines"]]
    assert times == sorted(times, reverse=True) and sum(row[2] for row in data["lines"]) == 7
    assert data["alive"][0] == ["tensor<4096x128xf32> model.py:5", 4 * 4096 * 128]
    assert [node[0] for node in data["graph"]["nodes"]] == data["places"][:4] and len(data["graph"]["edges"]) == 3
    assert data["passes"] == [] and data["summary"]["source"].startswith("a model of the chip")
    assert data["arguments"] == [
        ["x", "tensor<4096x256xf32>", 4 << 20, None],
        ["layer.weight", "tensor<256x128xf32>", 1 << 17, 6],
    ]
    assert [node[3] for node in data["graph"]["nodes"]] == ["dot_general", "reduce", "dot_general", "sub"]


def test_the_source_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("\n" * 8 + "    loss = x.sum()\n")
    sources = ["", "loss = x.sum()", "", ""]
    assert page_data(costed(STEP))["sources"][:4] == sources
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    Path("train.py").write_text("\n" * 8 + "another file\n")
    assert page_data(costed(STEP), folders=[str(tmp_path)])["sources"][:4] == sources
    assert embedded(page(costed(STEP), about=About("", (), "", {}, (str(tmp_path),))))["sources"][:4] == sources


def test_passes() -> None:
    before = STEP.replace("func.return", "%7 = lazytpu.sin %6 : tensor<256x128xf32>\nfunc.return")
    step = costed(before, "dce,cse")
    first, second = page_data(step)["passes"]
    assert (first["name"], first["before"], first["after"], first["kinds"]) == ("dce", 10, 9, {"sin": -1})
    assert ["-", "%7 = lazytpu.sin %6 : tensor<256x128xf32>"] in first["lines"]
    assert second["lines"] == [] and 'id="passes"' in page(step) and 'id="passes"' not in page(costed(STEP))


def test_clusters_are_the_nodes() -> None:
    data = page_data(costed(CLUSTERS))
    assert data["graph"]["by"] == "cluster"
    assert [node[0] for node in data["graph"]["nodes"]] == ["cluster_0 #0", "cluster_0 #1", "model.py:6"]


def test_the_compilers_figures_take_the_place_of_the_models() -> None:
    data = page_data(costed(STEP, cost=program_of(json.dumps(REPORT), "step")))
    assert data["summary"]["source"] == "libtpu 1.0" and data["summary"]["path_us"] == 5.0
    assert data["summary"]["seconds_us"] == pytest.approx(5)
    assert [span[:4] + span[5:6] for span in data["timeline"]] == [
        ["core", 0.0, 4.0, "fusion fusion.1, bound by matrix unit", "dot"],
        ["links", 4.0, 5.0, "all-reduce all-reduce, bound by links", "all-reduce"],
    ]
    lines = [[data["places"][place], us, count, kind] for place, us, count, kind, _ in data["lines"]]
    assert lines[:2] == [["model.py:5 (backward)", 4.0, 2, "dot"], ["", 1.0, 0, "all-reduce"]]
    assert lines[2:] == [["model.py:5", 0.0, 3, ""], ["train.py:9", 0.0, 1, ""], ["train.py:11", 0.0, 1, ""]]
    times = {name: us for name, _, us, _ in data["graph"]["nodes"]}
    assert times == {"model.py:5": 0.0, "train.py:9": 0.0, "model.py:5 (backward)": 4.0, "train.py:11": 0.0}
    assert data["roofline"]["dots"] == [["fusion.1", data["timeline"][0][4], 2e6, 100, 4.0, "dot"]]
    assert data["lines"][0][4] == 2e6 and data["roofline"]["peak"] == 1e12
    assert data["places"][data["timeline"][0][4]] == "model.py:5 (backward)"
    assert data["memory"] == [[0.0, 900], [0.0, 800], [4.0, 700]]
    assert data["alive"] == [["f32[8] model.py:5 (backward)", 32]]
    assert data["advice"] == [["a head of 64", "use 128", "model.py:5 (backward)"]]


def test_the_title_names_script_models_and_versions() -> None:
    about = About("train.py", ("GPT", "Critic"), "cpu", {"lazytpu": "0.1.0", "torch": "2.13.0"})
    html = page(costed(STEP), about=about)
    assert "<title>train.py: GPT, Critic, step (lazytpu 0.1.0, torch 2.13.0)</title>" in html
    assert "<h1>train.py: GPT, Critic</h1>" in html and "<h1>step</h1>" in page(costed(STEP))


@pytest.mark.parametrize(
    ("dumped", "passes", "shown"),
    [
        ("cpu", None, "as the pipeline for cpu left it, not as a TPU's would"),
        ("v5p", None, "as the pipeline for v5p left it"),
        ("cpu", "v6e", "as the pipeline for v6e left it"),
        ("v5p", "cse,dce", "as the pipeline cse,dce left it, not as a TPU's would"),
        ("", None, "as an unknown pipeline left it, not as a TPU's would"),
    ],
)
def test_it_says_which_pipeline_it_shows(dumped: str, passes: str | None, shown: str) -> None:
    html = page(costed(STEP, passes or ""), about=About("train.py", ("GPT",), dumped, {}))
    assert f"{shown}. Times and memory are estimates of a TPU v6e by a model" in unescape(html)


def test_a_colour_means_one_thing() -> None:
    """All colours are variables of the style sheet, and no two are equal within a scheme."""
    sources = {path.name: path.read_text() for path in SOURCES.iterdir() if path.suffix in (".css", ".js", ".jinja")}
    light, dark = (dict(COLOUR.findall(line)) for line in re.findall(r":root \{.*?\}", sources["page.css"], re.DOTALL))
    for scheme in (light, light | dark):
        assert len(set(scheme.values())) == len(scheme)
    families = re.findall(r'"(--\w+)", /', sources["common.js"])
    assert len(families) == len(set(families)) == 6 and set(families) < set(light)
    unnamed = "".join(re.sub(r":root \{.*?\}", "", text, flags=re.DOTALL) for text in sources.values())
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!\{)|\b(rgba?|hsla?)\(", unnamed)
    assert not any(f"var({family})" in sources["page.css"] for family in families)


@pytest.mark.parametrize("text", ["", "{}", '{"programs": []}', '{"programs": [{"name": "step"}]}'])
def test_not_a_report(text: str) -> None:
    with pytest.raises(ValueError, match="this is not a report of `lazytpu-show cost --json FILE`"):
        program_of(text, "step")


@pytest.mark.parametrize("field", sorted(REPORT["programs"][0].keys() - {"name", "compiler"}))
def test_a_report_has_every_field_that_the_page_shows(field: str) -> None:
    remaining = {name: value for name, value in REPORT["programs"][0].items() if name != field}
    with pytest.raises(ValueError, match=f"this is not a report .*: it has no {field}"):
        program_of(json.dumps({"programs": [remaining]}), "step")


def test_of_a_program_of_this_process(tmp_path: Path) -> None:
    """It goes through the passes of the chip whose times are shown."""
    graph = ProgramGraph(0, "train_step", 9, Texts(STEP, "", ()))
    graph.save_html(tmp_path / "step.html", generation="v5e", by_model=True)
    data = embedded((tmp_path / "step.html").read_text())
    assert (data["name"], data["summary"]["generation"]) == ("train_step", "v5e")
    assert [change["name"] for change in data["passes"]][-1] == "mark-donation"
    with pytest.raises(ValueError, match="no generation 'v1'; generations are v5e"):
        graph.save_html(tmp_path / "step.html", generation="v1")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda: False)
    path = tmp_path / "004-step.imported.mlir"
    path.write_text(STEP)
    (tmp_path / "004-step.why.txt").write_text("a dtype changed\n")
    (tmp_path / "cost.json").write_text(json.dumps(REPORT))
    assert main(["html", str(path), "--cost", str(tmp_path / "cost.json")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / '004-step.html'}: ")
    (tmp_path / "005-other.imported.mlir").write_text(CLUSTERS)
    assert main(["html", str(tmp_path), "-p", "dce", "-o", str(tmp_path / "out.html")]) == 0
    assert embedded((tmp_path / "out.html").read_text())["name"] == "004-step"
    data = embedded((tmp_path / "004-step.html").read_text())
    assert data["why"] == "a dtype changed" and data["summary"]["source"] == "libtpu 1.0"
    assert [change["name"] for change in data["passes"]][-1] == "mark-donation"


def test_passes_belong_to_the_chip_of_the_shown_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def report_text(*_: object, passes: str | None = None, **__: object) -> TpuReport:
        asked.append(passes)
        return TpuReport("v5p:2x2x1", (recorded("step"),))

    monkeypatch.setattr(compiling, "installed", lambda: True)
    monkeypatch.setattr(compiling, "report_text", report_text)
    path = tmp_path / "004-step.imported.mlir"
    path.write_text(STEP)
    (tmp_path / "004-step.about.txt").write_text("script: train.py\nmodels: GPT\ntarget: cpu\nlazytpu: 0.1.0\n")
    with options(target="gpu"):
        for arguments, passes in (([], for_target(Target.parse("v5p"))), (["-p", "cse,dce"], "cse,dce")):
            assert main(["html", str(path), "--generation", "v5p", *arguments]) == 0
            html = (tmp_path / "004-step.html").read_text()
            ran = [change["name"] for change in embedded(html)["passes"]]
            assert ran == [spec.name for spec in parse_pipeline(passes)] and "<h1>train.py: GPT</h1>" in html
            assert f"by libtpu {metadata.version('libtpu')}." in html
    compiled = tmp_path / "004-step.lazytpu.mlir"
    compiled.write_text(STEP)
    assert main(["html", str(compiled)]) == 0
    assert "as the pipeline for cpu left it" in (tmp_path / "004-step.html").read_text()
    assert asked == [None, "cse,dce", ""]  # None: the generation's own


def test_page_uses_the_compiler_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda: True)
    monkeypatch.setattr(compiling, "report_text", lambda *_, **__: TpuReport("v6e:2x2", (recorded("step"),)))
    path = tmp_path / "004-step.imported.mlir"
    path.write_text(STEP)
    for arguments, by in (([], "libtpu"), (["--model"], "a model of the chip")):
        assert main(["html", str(path), *arguments]) == 0
        assert embedded((tmp_path / "004-step.html").read_text())["summary"]["source"].startswith(by)


def test_modules() -> None:
    data = page_data(costed(MODULES))
    paths = [path for path, _, _ in data["modules"]]
    assert paths[0] == "blocks" and set(paths) == {f"blocks{path}" for path in ("", ".0", ".0.act", ".1", ".1.act")}
    times = {path: (forward, backward) for path, forward, backward in data["modules"]}
    assert times["blocks"] == pytest.approx([sum(times[f"blocks.{i}"][n] for i in (0, 1)) for n in (0, 1)], abs=0.01)
    assert times["blocks.1.act"][1] > 0 and times["blocks.0"][1] == 0
    assert [op[8] for op in data["ops"]][::3] == ["blocks.0.act", "blocks.1.act"]
    assert {span[6] for span in data["timeline"]} <= {op[8] for op in data["ops"]}
    assert 'id="modules"' in page(costed(MODULES)) and 'id="modules"' not in page(costed(STEP))
