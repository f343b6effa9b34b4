"""A few random trainings in every run of the long tests; `make random-trainings` has thousands of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = int(os.environ.get("RANDOM_TRAININGS", "0"))
FIRST = int(os.environ.get("RANDOM_TRAININGS_FROM", "0"))
EACH = 40
"As many trainings as one process has: crashes may need its history."


@pytest.mark.long
@pytest.mark.parametrize("first", range(FIRST, FIRST + (COUNT or 8), EACH))
def test_losses_of_the_cpu(first: int) -> None:
    """A process that ends, by a signal too, has printed the seed of the training that ended it, and the stacks."""
    count = min(EACH, FIRST + (COUNT or 8) - first)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.training.random_trainings"]
    given = ["--first", str(first), "--count", str(count)]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *given], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
