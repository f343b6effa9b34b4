"""A second process of the same script compiles nothing, imports no compiler, and reports the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import zygote

pytestmark = pytest.mark.xdist_group("second process")  # the tests share two processes

SCRIPT = """
import json, sys
import torch
import lazytpu

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, dropout=0.25, batch_first=True)
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 11)

    def forward(self, tokens):
        x = self.table(tokens)
        return self.head(self.norm(x + self.attention(x, x, x, need_weights=False)[0]))

torch.manual_seed(0)
model = Model().to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.arange(20).reshape(2, 10).remainder(11).to("tpu")
losses = []
for step in range(4):
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
losses = [float(loss) for loss in losses]
metrics = lazytpu.metrics()
rooms = "xdsl networkx rich lazytpu.aten.importer lazytpu.passes.pipeline lazytpu.lowering"
heavy = [name for name in rooms.split() if name in sys.modules]
try:
    model.table(tokens[:1] + 5).cpu()
    message = ""
except IndexError as error:
    message = str(error)
texts = [(graph.name, graph.text(), graph.stablehlo()) for graph in lazytpu.graphs()]
kept = {name: metrics[name] for name in ("compiles", "cache_hits", "misses", "steps")}
print(json.dumps({"losses": losses, "heavy": heavy, "message": message, "texts": texts, **kept}))
"""


def run(path: Path, script: str, fresh: bool) -> dict[str, Any]:
    path.write_text(script)
    if fresh:
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
    else:
        done = zygote.run([str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of two processes. The second runs the script three lines further down, and in a fresh Python, so
    that it has loaded only modules that it needs."""
    folder = tmp_path_factory.mktemp("second process")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYTPU_CACHE_DIR", str(folder / "cache"))
        patch.setenv("LAZYTPU_BACKGROUND_COMPILE", "0")  # whole programs, however long they take here
        return run(folder / "train.py", SCRIPT, False), run(folder / "train.py", "\n\n\n" + SCRIPT, True)


def test_second_process_compiles_nothing(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = reports
    assert first["compiles"] == first["misses"] > 0
    assert second["compiles"] == 0
    assert second["cache_hits"] == second["misses"] == first["compiles"]
    assert second["steps"] == first["steps"]


def test_second_process_imports_no_compiler(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = reports
    assert "xdsl" in first["heavy"]
    assert second["heavy"] == []


def test_results_are_bitwise_equal(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = reports
    assert len(set(first["losses"])) == 4
    assert second["losses"] == first["losses"]


def test_device_errors_name_current_lines(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    line = SCRIPT.splitlines().index("    model.table(tokens[:1] + 5).cpu()") + 1
    for process, expected in zip(reports, (line, line + 3), strict=True):
        assert "out of range" in process["message"]
        assert f"train.py:{expected})" in process["message"]


def test_graphs_are_equal(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = reports
    plain = [[(name, _without_lines(text), hlo) for name, text, hlo in process["texts"]] for process in (first, second)]
    assert len(plain[0]) > 1
    assert plain[0] == plain[1]


def _without_lines(text: str) -> str:
    return re.sub(r"train\.py:\d+", "train.py", re.sub(r'"[^"]*train\.py":\d+', "train.py", text))
