"""The page in headless Chromium: its contents, its search, and its reactions to clicks."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lazytpu.inspection.html.page import page
from lazytpu.inspection.show import main
from tests.inspection.html.conftest import CHROMIUM
from tests.inspection.step.samples import CLUSTERS, MODULES, STEP, costed

# A user's actions, and the state of the page after them: run in the page after its own scripts.
ACTIONS = """
const pixels = c => c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
const ink = id => pixels($(id)).some(x => x);
told.ready = document.body.dataset.ready;
told.cards = [...document.querySelectorAll(".card b")].map(each => each.textContent);
told.lines = [...document.querySelectorAll(".bar code")].map(each => each.firstChild.textContent);
told.nodes = document.querySelectorAll("#arcs .node").length;
told.arcs = document.querySelectorAll("#arcs path").length;
told.drawn = [ink("timeline"), ink("memory")];
told.rows = [...document.querySelectorAll("#rows .row")].map(each => each.children[1].textContent);
if ($("passes")) {
  told.pass = $("pass-name").textContent;
  told.removed = [...document.querySelectorAll("#diff .minus")].map(each => each.textContent);
  $("after").click();
  told.next = $("pass-name").textContent;
}
document.querySelector(".bar").click();
told.searched = $("search").value;
told.found = $("found").textContent;
document.querySelector("#rows .row").click();
told.details = $("details").hidden ? null : $("details").textContent;
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
told.closed = $("details").hidden && $("search").value === "";
const press = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
document.querySelector(".bar").focus();
press(document.activeElement, "Enter");
told.pressed = $("search").value;
press(document, "Escape");
press($("table"), "ArrowDown");
press($("table"), "ArrowDown");
told.second = $("details").textContent;
told.wide = document.documentElement.scrollWidth;
"""

SEARCHES = """
const column = n => [...document.querySelectorAll(`#rows .row > :nth-child(${n})`)].map(cell => cell.textContent);
told.typed = {};
for (const query of QUERIES) {
  $("search").value = query;
  $("search").dispatchEvent(new Event("input"));
  await new Promise(done => setTimeout(done, 200));
  told.typed[query] = column(1).map(Number);
}
told.clicked = {};
const name = bar => bar.querySelector("code").firstChild.textContent;
for (const line of [...document.querySelectorAll(".bar")].map(name)) {
  [...document.querySelectorAll(".bar")].find(bar => name(bar) === line).click();
  told.clicked[line] = [...new Set(column(4)), ...[...document.querySelectorAll(".bar.hit")].map(name)];
}
"""

STOPS = """
told.stops = [];
told.overflows = [];
for (const width of [420, 800, 1280, 2000]) {
  document.querySelector("main").style.width = document.querySelector("main").style.maxWidth = width + "px";
  for (const name of document.querySelectorAll("#stops button")) {
    name.click();
    const box = $("pass").getBoundingClientRect();
    const thumb = parseFloat(getComputedStyle($("pass")).getPropertyValue("--thumb"));
    const at = name.getBoundingClientRect(), part = Number($("pass").value) / Math.max(1, Number($("pass").max));
    told.stops.push(Math.abs((at.left + at.right) / 2 - (box.left + thumb / 2 + part * (box.width - thumb))));
    told.overflows.push(name.scrollWidth - name.clientWidth);
  }
}
"""


def in_chromium(page_html: str, folder: Path, actions: str = ACTIONS, width: int = 800) -> dict[str, Any]:
    """Return the reports of the actions, in a window of this width. A page whose script fails reports nothing."""
    script = f"""<script>addEventListener("load", async () => {{
        const $ = id => document.getElementById(id), told = {{}};
        {actions}
        const answer = document.createElement("pre");
        Object.assign(answer, {{ id: "told", textContent: JSON.stringify(told) }});
        document.body.replaceChildren(answer);
    }});</script></body>"""
    path = folder / "page.html"
    path.write_text(page_html.replace("</body>", script))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},900",
        "--virtual-time-budget=20000",
        "--dump-dom",
        path.as_uri(),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    shown = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert shown is not None, done.stderr[-2000:] + done.stdout[-2000:]
    return json.loads(html.unescape(shown[1]))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The page of the sample, with a pass that removes an op and a pass that changes nothing."""
    before = STEP.replace("func.return", "%7 = lazytpu.sin %6 : tensor<256x128xf32>\nfunc.return")
    return in_chromium(page(costed(before, "cse,dce,cse")), tmp_path_factory.mktemp("browser"))


def test_everything_is_drawn(report: dict[str, Any]) -> None:
    assert report["ready"] == "yes" and report["drawn"] == [True, True]
    assert "7" in report["cards"] and report["cards"][0].endswith(" µs")
    lines = ["model.py:5", "model.py:5 (backward)", "no source line", "train.py:11", "train.py:9"]
    assert sorted(report["lines"]) == lines
    assert (report["nodes"], report["arcs"]) == (4, 3)
    assert report["rows"] == ["dot_general", "constant", "max", "reduce", "exp", "dot_general", "sub"]


def test_the_slider_begins_at_the_first_change(report: dict[str, Any]) -> None:
    assert report["pass"].startswith("2. dce: 10 → 9 ops") and report["next"].startswith("3. cse: 9 → 9 ops")
    assert report["removed"] == ["- %7 = lazytpu.sin %6 : tensor<256x128xf32>"]


def test_a_click_on_a_line_searches_for_it(report: dict[str, Any]) -> None:
    assert report["searched"] == report["lines"][0]
    assert re.fullmatch(r"\d of 7 ops", report["found"])


def test_a_click_on_an_op_shows_it(report: dict[str, Any]) -> None:
    assert "lazytpu." in report["details"] and "reads: " in report["details"] and report["closed"]


def test_clusters(tmp_path: Path) -> None:
    report = in_chromium(page(costed(CLUSTERS)), tmp_path)
    assert (report["nodes"], report["arcs"], report["drawn"]) == (3, 2, [True, True])


def test_it_works_from_the_keyboard_and_in_narrow_windows(report: dict[str, Any]) -> None:
    assert report["pressed"] == report["lines"][0] and report["second"].startswith("close1 constant")
    assert report["wide"] <= 800


def lines(*places: tuple[str, str, str]) -> str:
    """Return a module with an op for each (operand, op, location)."""
    names = ("blocks.1.weight", "blocks.10.weight", "blocks.11.weight")
    arguments = [f'%a{i}: tensor<8xf32> {{lazytpu.name = "{name}"}}' for i, name in enumerate(names)]
    arguments[0] = arguments[0].replace("}", f", lazytpu.alias = {len(places) - 1} : i64}}")
    ops = [f"%{i} = lazytpu.{op} {of} : tensor<8xf32> {where}" for i, (of, op, where) in enumerate(places)]
    results = ", ".join(f"%{i}" for i in range(len(places)))
    kinds = ", ".join(["tensor<8xf32>"] * len(places))
    body = "\n".join([*ops, f"func.return {results} : {kinds}"])
    return f"func.func @main({', '.join(arguments)}) -> ({kinds}) {{\n{body}\n}}"


SEARCHED = lines(
    ("%a0", "exp", 'loc("train.py":1:0)'),
    ("%a1", "sin", 'loc("train.py":10:0)'),
    ("%a2", "sin", 'loc("train.py":11:0)'),
    ("%0", "neg", 'loc("backward"("train.py":1:0))'),
    ("%1", "neg", 'loc("backward"("train.py":10:0))'),
    ("%2", "exp", 'loc("constrain.py":1:0)'),
    ("%3", "cos", ""),
)
QUERIES = {
    ":1": [0, 3, 5],
    "train.py:1": [0],
    "train.py:1 (backward)": [3],
    "train.py:1 backward": [3],
    "backward": [3, 4],
    "train.py:10": [1],
    ":10": [1, 4],
    "blocks.1.weight": [0, 6],
    "blocks.11.weight": [2],
    "blocks.1": [0, 6],
    "BLOCKS": [0, 1, 2, 6],
    "weight sin": [1, 2],
    "%1": [1, 4],
    "f32": [0, 1, 2, 3, 4, 5, 6],
    "no source line": [6],
    "nothing of the kind": [],
}


def test_searches(tmp_path: Path) -> None:
    actions = SEARCHES.replace("QUERIES", json.dumps(list(QUERIES)))
    report = in_chromium(page(costed(SEARCHED)), tmp_path, actions)
    assert report["typed"] == QUERIES
    # A click on a line shows only its ops, and marks only that line.
    assert len(report["clicked"]) == 7 and all(set(shown) == {name} for name, shown in report["clicked"].items())


@pytest.mark.parametrize("passes", [1, 2, 15, 40])
def test_every_stop_of_the_slider_is_above_its_name(passes: int, tmp_path: Path) -> None:
    step = costed(STEP, ",".join(["overlap-collectives", *["constant-folding"] * (passes - 1)]))
    report = in_chromium(page(step), tmp_path, STOPS)
    assert len(report["stops"]) == 4 * passes and max(report["stops"]) < 1 and max(report["overflows"]) <= 0


def test_a_program_without_ops(tmp_path: Path) -> None:
    text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\nfunc.return %x : tensor<8xf32>\n}"
    actions = 'told.ready = document.body.dataset.ready; told.text = $("rows").textContent + $("arcs").textContent;'
    assert in_chromium(page(costed(text)), tmp_path, actions) == {
        "ready": "yes", "text": 2 * "There is no op in this program.",
    }  # fmt: skip


def test_rows_are_created_when_they_become_visible(tmp_path: Path) -> None:
    kind, text = "tensor<" + "1x" * 40 + "8xf32>", ""
    for i in range(1_000):
        text += f'%{i} = lazytpu.sin %{i - 1 if i else "x"} : {kind} loc("{"long/" * 40}model.py":{i % 300}:0)\n'
    text = f"func.func @main(%x: {kind}) -> {kind} {{\n{text}func.return %999 : {kind}\n}}"
    actions = 'told.rows = document.querySelectorAll("#rows .row").length;'
    actions += "told.wide = document.documentElement.scrollWidth;"
    report = in_chromium(page(costed(text)), tmp_path, actions)
    assert 20 < report["rows"] < 100 and report["wide"] <= 800


def test_modules(tmp_path: Path) -> None:
    actions = """
    const names = () => [...document.querySelectorAll("#by-module .bar code")].map(row => row.title);
    told.all = names();
    const rows = [...document.querySelectorAll("#by-module .bar")];
    rows.find(row => row.querySelector("code").title === "blocks.1").click();
    told.found = $("found").textContent;
    document.querySelector("#by-module .fold").click();
    told.folded = names();
    told.wide = document.documentElement.scrollWidth;
    """
    report = in_chromium(page(costed(MODULES)), tmp_path, actions, width=500)
    assert len(report["all"]) == 5 and report["found"] == "3 of 6 ops" and report["folded"] == ["blocks"]
    assert report["wide"] <= 500


def test_the_roofline_and_the_exported_timeline(tmp_path: Path) -> None:
    actions = """
    told.dots = document.querySelectorAll("#roofline circle").length;
    document.querySelector("#roofline circle").dispatchEvent(new MouseEvent("click", { bubbles: true }));
    told.searched = $("search").value;
    $("export").click();
    told.events = Number($("export").dataset.events);
    told.wide = document.documentElement.scrollWidth;
    """
    step = costed(STEP)
    report = in_chromium(page(step), tmp_path, actions, width=500)
    assert report["dots"] == sum(op["flops"] > 0 for op in step.cost["ops"]) == 2
    assert report["searched"].startswith("model.py:5") and report["wide"] <= 500
    assert report["events"] == 1 + len(step.cost["timeline"]), "the name of the lane, and each kernel"


@pytest.mark.parametrize("width", [390, 1400])
def test_index_of_runs_fits_the_window(tmp_path: Path, width: int) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for number, text in enumerate((STEP, MODULES)):
        (run / f"{number:03d}-a_step_with_a_long_name.imported.mlir").write_text(text)
        (run / f"{number:03d}-a_step_with_a_long_name.why.txt").write_text(f"{'a long reason ' * 9}\n- old\n+ new\n")
    assert main(["runs", str(run), str(run), "-o", str(tmp_path / "pages"), "--model"]) == 0
    actions = """
told.wide = document.documentElement.scrollWidth <= innerWidth;
told.links = document.querySelectorAll("td a").length;
told.columns = getComputedStyle(document.querySelector("thead")).display !== "none";
document.querySelector("summary").click();
told.shown = document.querySelector("details").open;
"""
    told = in_chromium((tmp_path / "pages" / "index.html").read_text(), tmp_path, actions, width)
    assert told == {"wide": True, "links": 4, "columns": width > 700, "shown": True}
