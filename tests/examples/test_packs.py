"""With a pack, the commands that docs/warmup.md lists compile nothing.

`tests/inspection/test_recorded.py` has a quick script of the same kind.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lazytpu.inspection import recorded
from lazytpu.inspection.show import main
from tests import zygote
from tests.inspection.test_recorded import by_zygote

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = re.findall(r"^\| `python (examples/.*)` \|", (ROOT / "docs/warmup.md").read_text(), re.MULTILINE)
COUNTED = """
import atexit, runpy, sys
import lazytpu
atexit.register(lambda: print("compiled", lazytpu.metrics()["compiles"]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script, and prints the number of programs that it compiled."""


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_listed_command_compiles_nothing_with_its_pack(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_python", by_zygote)
    monkeypatch.chdir(ROOT)
    pack, cache = tmp_path / "pack.zip", tmp_path / "cache"
    command = command.replace("gpt.pt", str(tmp_path / "gpt.pt"))
    assert main(["pack", str(pack), "--kernels", "cpu", "--run", command]) == 0
    assert main(["unpack", str(pack), "--dir", str(cache)]) == 0
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(cache)}
    done = zygote.run(["-c", COUNTED, *command.split()], cwd=ROOT, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "compiled 0"
