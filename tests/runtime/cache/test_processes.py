"""Several processes with one folder compile each program once among all of them, with the same results."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from lazytpu.runtime.cache.store import Store
from tests import zygote

ROOT = Path(__file__).parents[3]

TRAIN = """
import json, sys, time
from pathlib import Path

import torch

import lazytpu

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batch = torch.randn(32, 8)

here, others = Path(sys.argv[1]), int(sys.argv[2])
here.touch()
while len(list(here.parent.glob("ready*"))) < others:
    time.sleep(0.001)

x = batch.to("tpu")
losses = []
for step in range(5):
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
basis = torch.linalg.qr(x[:8])[1]  # calls LAPACK
found = [loss.item().hex() for loss in losses], [value.hex() for value in basis.flatten().tolist()]
counted = lazytpu.metrics()
print(json.dumps({"found": found, **{name: counted[name] for name in ("compiles", "cache_hits", "cache_misses")}}))
"""


FOUR = """
import numpy as np

from lazytpu.runtime.xla import client
from lazytpu.runtime.cache import programs
from lazytpu.runtime.xla.mlir import ir

TEXT = "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {" \
    "%0 = stablehlo.add %x, %x : tensor<4xf32> return %0 : tensor<4xf32> }"
with client.mlir_context():
    module = ir.Module.parse(TEXT)
key = programs.program_key(module)
made = [programs.obtain(module, key, device=device) for device in range(4)]
assert [each.compiled for each in made] == [True, False, False, False]
for device, each in enumerate(made):
    x = client.to_device(np.arange(4, dtype=np.float32), device)
    (result,) = each.program.run([x])
    assert result.device == client.devices()[device] and client.to_host(result).tolist() == [0, 2, 4, 6]
"""


def start(folder: Path, i: int, others: int, script: str = TRAIN, warn: str = "error") -> zygote.Process:
    path = folder / f"train{i}.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": warn}
    return zygote.Process([str(path), str(folder / f"ready{i}"), str(others)], env=environment)


def finish(process: zygote.Process) -> dict[str, Any]:
    printed, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    assert complaints == "", "XLA has nothing to say about a program that was loaded"
    return json.loads(printed)


def test_racing_processes_compile_each_program_once(empty_cache: Path, tmp_path: Path):
    racing = [finish(process) for process in [start(tmp_path, i, 2) for i in range(2)]]
    programs = len(Store(empty_cache).entries("program"))
    assert sum(process["compiles"] for process in racing) == programs > 1
    assert sum(process["cache_misses"] for process in racing) == programs
    # A process with another path, and with every line moved.
    later = finish(start(tmp_path, 2, 1, "# A comment.\n\n" + TRAIN))
    assert (later["compiles"], later["cache_misses"]) == (0, 0)
    assert 1 < later["cache_hits"] <= programs, "a step that one of the two had to wait in may have been cut"
    assert later["found"] == racing[0]["found"] == racing[1]["found"]


def test_damaged_entries_are_compiled_again(empty_cache: Path, tmp_path: Path):
    first = finish(start(tmp_path, 0, 1))
    for i, file in enumerate(sorted((empty_cache / "entries").iterdir())):
        data = file.read_bytes()
        file.write_bytes([data[:-1], b"", data[:30], os.urandom(len(data)), data[:-9] + bytes(9)][i % 5])
    process = start(tmp_path, 1, 1, warn="default")
    printed, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    again = json.loads(printed)
    assert again["found"] == first["found"] and again["compiles"] == first["compiles"]
    assert complaints.count("damaged or foreign") == complaints.count("CacheWarning") > 1


def test_process_killed_during_compilation_blocks_nobody(empty_cache: Path, tmp_path: Path):
    victim = start(tmp_path, 0, 1)
    deadline = time.monotonic() + 120
    while not (empty_cache / "locks").is_dir() or not any((empty_cache / "locks").iterdir()):
        assert time.monotonic() < deadline and victim.poll() is None
        time.sleep(0.001)
    victim.kill()
    victim.communicate()
    outcome = finish(start(tmp_path, 1, 1))
    assert outcome["compiles"] >= 1
    assert not any((empty_cache / "temporary").iterdir())
    assert Store(empty_cache).verify() == []


def test_program_runs_on_the_device_it_is_loaded_for(empty_cache: Path):
    """Ranks of one machine share a program that one of them compiled for its own device."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = zygote.run(["-c", FOUR], env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(Store(empty_cache).entries()) == 1
