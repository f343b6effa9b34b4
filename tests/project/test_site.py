"""The documentation as a site: every linked page and anchor exists, and the build needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.reference.__main__ import PAGE
from tools.reference.page import page

ROOT = Path(__file__).resolve().parents[2]

BUILD = """
import sys
from mkdocs.__main__ import cli
try:
    cli(["build", "--quiet", "--site-dir", sys.argv[1]])
finally:
    heavy = {"torch", "jax", "xdsl"} & sys.modules.keys()
    assert not heavy, heavy
"""


def test_site_is_built_without_a_warning(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", BUILD, tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads((tmp_path / "search/search_index.json").read_text())
    places = {entry["location"] for entry in index["docs"]}
    assert {"index.html", "changelog.html", "architecture.html#r4-liveness", "ir.html#gather"} <= places
    assert "api.html#lazytpu.mark_step" in places
    assert (tmp_path / "source/lazytpu/trace/trie.py.txt").read_text() == (ROOT / "lazytpu/trace/trie.py").read_text()


def test_reference_of_the_dialect_is_up_to_date():
    assert PAGE.read_text() == page(), "run make ir"
