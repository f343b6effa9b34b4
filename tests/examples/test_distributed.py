"""The examples of several processes, started as torchrun starts them: ranks, a store, and the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.ranks import free_port

ROOT = Path(__file__).resolve().parents[2]


def losses(device: str) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "examples/distributed/ddp.py", device]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]


def test_ddp_trains_as_on_gloo():
    assert losses("tpu") == pytest.approx(losses("cpu"), rel=1e-2)
