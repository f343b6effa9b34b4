"""Interrupts at random points of a training loop. `make interrupts` runs thousands, in every mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import zygote

COUNT = int(os.environ.get("INTERRUPTS", "0"))
LONG = [
    (mode, optimizer, signum, sizes)
    for mode in ("fused", "lazy", "strict", "debug")
    for optimizer, signum in (("sgd", "SIGALRM"), ("adamw", "SIGINT"), ("adam-loop", "SIGALRM"), ("rmsprop", "SIGINT"))
    for sizes in ("one size", "many sizes")
    if sizes == "one size" or mode in ("fused", "lazy")
]
CASES = LONG if COUNT else [("fused", "sgd", "SIGALRM", sizes) for sizes in ("one size", "many sizes")]


@pytest.mark.parametrize(("mode", "optimizer", "signum", "sizes"), CASES)
def test_interrupted_step_has_old_or_new_values(mode: str, optimizer: str, signum: str, sizes: str) -> None:
    count = COUNT // len(CASES) or 40
    arguments = ["--count", str(count), "--mode", mode, "--optimizer", optimizer, "--signal", signum]
    arguments += ["--sizes"] if sizes == "many sizes" else []
    done = zygote.run([str(Path(__file__).with_name("training.py")), *arguments], timeout=60 + count)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{count} interrupts\n"
