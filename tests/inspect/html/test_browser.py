"""The page in headless Chromium: what it shows, searches, and does when it is clicked."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lazytpu.inspect.html.page import page
from lazytpu.inspect.step.history import history
from lazytpu.inspect.step.model import Model
from lazytpu.inspect.step.reading import read
from lazytpu.passes.generations import GENERATIONS
from tests.inspect.html.conftest import CHROMIUM
from tests.inspect.step.samples import CLUSTERS, STEP

# What a person would do, and what is there then: run in the page after its own scripts.
ACTIONS = """
const $ = id => document.getElementById(id), told = {};
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
const answer = Object.assign(document.createElement("pre"), { id: "told", textContent: JSON.stringify(told) });
document.body.replaceChildren(answer);
"""


def in_chromium(page_html: str, folder: Path) -> dict[str, Any]:
    """What the actions told. A page whose script fails tells nothing."""
    script = f'<script>addEventListener("load", () => {{{ACTIONS}}});</script></body>'
    path = folder / "page.html"
    path.write_text(page_html.replace("</body>", script))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:] + done.stdout[-2000:]
    return json.loads(html.unescape(found[1]))


def model(text: str) -> Model:
    return Model(read(text, "step"), GENERATIONS["v6e"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The page of the sample, with a pass that removes an op and one that does nothing."""
    before = STEP.replace("func.return", "%7 = lazytpu.sin %6 : tensor<256x128xf32>\nfunc.return")
    changes, text = history(before, "cse,dce,cse")
    return in_chromium(page(model(text), changes), tmp_path_factory.mktemp("browser"))


def test_everything_is_drawn(told: dict[str, Any]) -> None:
    assert told["ready"] == "yes" and told["drawn"] == [True, True]
    assert "7" in told["cards"] and told["cards"][0].endswith(" µs")
    assert sorted(told["lines"]) == ["model.py:5", "model.py:5 (backward)", "train.py:11", "train.py:9"]
    assert (told["nodes"], told["arcs"]) == (4, 3)
    assert told["rows"] == ["dot_general", "constant", "max", "reduce", "exp", "dot_general", "sub"]


def test_the_slider_begins_at_the_first_change(told: dict[str, Any]) -> None:
    assert told["pass"].startswith("2. dce: 10 → 9 ops") and told["next"].startswith("3. cse: 9 → 9 ops")
    assert told["removed"] == ["- %7 = lazytpu.sin %6 : tensor<256x128xf32>"]


def test_a_click_on_a_line_searches_for_it(told: dict[str, Any]) -> None:
    assert told["searched"] == told["lines"][0]
    assert re.fullmatch(r"\d of 7 ops", told["found"])


def test_a_click_on_an_op_shows_it(told: dict[str, Any]) -> None:
    assert "lazytpu." in told["details"] and "reads: " in told["details"] and told["closed"]


def test_clusters(tmp_path: Path) -> None:
    told = in_chromium(page(model(CLUSTERS)), tmp_path)
    assert (told["nodes"], told["arcs"], told["drawn"]) == (3, 2, [True, True])
