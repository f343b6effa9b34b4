"""Each example runs end to end with small arguments on "tpu" and on stock PyTorch, and they agree."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests import zygote
from tests.compiling import as_flags

ROOT = Path(__file__).resolve().parents[2]
STOCK = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
TINY = "--steps 12 --layers 2 --heads 2 --width 32 --window 16 --batch 4 --sample 6 --dropout 0"
in_one_worker = pytest.mark.xdist_group("gpt")  # these look at the same two runs
KEYS = {"steps", "first_loss", "validation_loss", "compiles", "trace_ms", "device_ms", "peak_bytes"}


def run(*command: str, **environment: str) -> str:
    """Standard output of a process, which must end well: of a fresh Python for stock PyTorch."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": as_flags(), **environment}
    if environment == STOCK:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600
        )
    else:
        done = zygote.run(command, cwd=ROOT, env=variables, timeout=600, finalizes=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@functools.cache
def gpt(device: str) -> tuple[str, dict[str, Any], Path]:
    """Run a small training; return its output, the last line as JSON, and the path of its checkpoint."""
    out = Path(tempfile.mkdtemp()) / "gpt.pt"
    environment = STOCK if device == "cpu" else {"LAZYTPU_CACHE_DIR": "off"}  # its compilations are counted
    printed = run("examples/train_gpt.py", "--device", device, *TINY.split(), "--out", str(out), **environment)
    return printed, json.loads(printed.strip().splitlines()[-1]), out


@in_one_worker
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_gpt_prints_a_report(device: str):
    printed, report, _ = gpt(device)
    assert set(report) == KEYS
    assert report["steps"] == 12
    assert all(math.isfinite(value) for value in report.values())
    assert report["validation_loss"] < report["first_loss"]
    assert "a sample" in printed
    assert "closing report" in printed


@in_one_worker
def test_gpt_compiles_its_step_once():
    """One program each for the first step, the steady one, the validation and the sample, and one to spare."""
    _, report, _ = gpt("tpu")
    assert 2 <= report["compiles"] <= 5
    assert report["trace_ms"] > 0
    assert report["device_ms"] > 0
    assert report["peak_bytes"] > 0


@in_one_worker
def test_gpt_losses_agree_without_dropout():
    cpu, tpu = gpt("cpu")[1], gpt("tpu")[1]
    assert tpu["first_loss"] == pytest.approx(cpu["first_loss"], rel=1e-5)
    assert tpu["validation_loss"] == pytest.approx(cpu["validation_loss"], rel=1e-4)


@in_one_worker
def test_gpt_checkpoint_loads_without_lazytpu():
    """In a process that never hears of lazytpu, in another folder, with nothing but tensors and plain values."""
    code = f"""
import sys, torch
saved = torch.load({str(gpt("tpu")[2])!r}, weights_only=True)
assert all(w.device.type == "cpu" for w in saved["weights"].values())
sys.path.insert(0, {str(ROOT / "examples")!r})
import train_gpt
model = train_gpt.GPT(**saved["shape"])
model.load_state_dict(saved["weights"])
assert model(torch.zeros(1, 16, dtype=torch.long)).isfinite().all()
assert not any(name.split(".")[0] in ("lazytpu", "jax") for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tempfile.gettempdir(),
        env={**os.environ, **STOCK},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_gpt_on_the_cpu_does_not_import_lazytpu():
    code = f"""
import runpy, sys
sys.argv = ["train_gpt.py", "--device", "cpu", "--steps", "1", *{TINY.split()[2:]!r}, "--out", {os.devnull!r}]
runpy.run_path("examples/train_gpt.py", run_name="__main__")
assert not any(name.split(".")[0] in ("lazytpu", "jax") for name in sys.modules)
"""
    run("-c", code, **STOCK)


@functools.cache
def digits(device: str, epochs: int) -> dict[str, Any]:
    environment = STOCK if device == "cpu" else {}
    printed = run("examples/digits.py", "--device", device, "--epochs", str(epochs), **environment)
    return json.loads(printed.strip().splitlines()[-1])


@pytest.mark.long
def test_digits_first_losses_agree():
    """The first step is exact; after an epoch of BatchNorm in f32 any two engines differ by about a thousandth."""
    cpu, tpu = digits("cpu", 1), digits("tpu", 1)
    assert tpu["losses"][0] == pytest.approx(cpu["losses"][0], rel=1e-5)
    assert tpu["losses"][1] == pytest.approx(cpu["losses"][1], rel=5e-2)


@pytest.mark.long
def test_digits_learns():
    report = digits("tpu", 8)
    assert report["test_accuracy"] >= 0.97
    assert report["compiles"] <= 4


@pytest.mark.usefixtures("empty_cache")
def test_mlp_agrees_and_compiles_its_step_once():
    lines = {device: run("examples/mlp.py", device).strip().splitlines() for device in ("cpu", "tpu")}
    pattern = re.compile(r"step (\d+): loss (\S+), (\d+) compiles")
    rows = {device: [pattern.fullmatch(line) for line in printed] for device, printed in lines.items()}
    assert all(all(matches) for matches in rows.values())
    cpu, tpu = ([(int(m[1]), float(m[2])) for m in matches if m] for matches in rows.values())
    assert [step for step, _ in tpu] == [0, 50, 100, 150, 200]
    assert tpu[0][1] == pytest.approx(cpu[0][1], rel=1e-5, abs=1e-5)
    assert tpu[-1][1] < 0.05 * tpu[0][1]
    compiles = [int(m[3]) for m in rows["tpu"] if m]
    assert 1 <= compiles[1] == compiles[-1] <= 3
    again = run("examples/mlp.py", "tpu").strip().splitlines()
    assert again == [re.sub(r"\d+ compiles", "0 compiles", line) for line in lines["tpu"]]


@pytest.mark.usefixtures("empty_cache")
def test_serving_equals_the_cpu_with_few_programs():
    tiny = "--requests 6 --longest 20 --tokens 8 --at-once 2 --layers 1 --width 16".split()
    cpu, tpu = (
        json.loads(run("examples/serving.py", "--device", device, *tiny, **variables).strip().splitlines()[-1])
        for device, variables in (("cpu", STOCK), ("tpu", {}))
    )
    assert tpu["answers"] == cpu["answers"]
    assert len(tpu["answers"]) == 6
    assert 0 < tpu["programs"] <= 4 + 4 * math.log2(tpu["tokens"])
