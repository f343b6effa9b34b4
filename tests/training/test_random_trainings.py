"""A few random trainings in every run of the long tests; `make random-trainings` has thousands of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = int(os.environ.get("RANDOM_TRAININGS", "0"))
FIRST = int(os.environ.get("RANDOM_TRAININGS_FROM", "0"))
TRAININGS_PER_PROCESS = 40
"The number of trainings in one process, since crashes may depend on its history."


@pytest.mark.long
@pytest.mark.parametrize("first", range(FIRST, FIRST + (COUNT or 8), TRAININGS_PER_PROCESS))
def test_losses_equal_the_cpu(first: int) -> None:
    """A crashed process has printed the seed of its last training and the stacks of its threads."""
    count = min(TRAININGS_PER_PROCESS, FIRST + (COUNT or 8) - first)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.training.random_trainings"]
    options = ["--first", str(first), "--count", str(count)]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
