"""The checked versions, and the warning about others."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from lazytpu import versions
from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.versions import CHECKED, Combination, UncheckedVersionWarning
from tools import versions as checks

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("version", "release", "minor"),
    [("2.13.0+cpu", (2, 13, 0), "2.13"), ("0.12.0.1", (0, 12, 0, 1), "0.12"), ("2.16.0a0+git12", (2, 16, 0), "2.16")],
)
def test_releases(version: str, release: tuple[int, ...], minor: str) -> None:
    assert versions.release(version) == release and versions.minor(version) == minor


def test_installed_combination_was_checked() -> None:
    assert versions.installed() in CHECKED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_unchecked()


def test_unchecked_combination_warns_with_the_checked_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: Combination("3.11", "2.16", "0.10", "0.74"))
    with pytest.warns(UncheckedVersionWarning, match=r"torch 2\.16.*Python 3\.11 with torch 2\.13, jax 0\.10"):
        versions.warn_unchecked()


def test_jax_and_jaxlib_have_one_release() -> None:
    versions.require_one_release("0.12.0.1", "0.12.0.1")
    with pytest.raises(ImportError, match=r"jax is 0\.12\.0\.1 and jaxlib is 0\.11\.2; .*pip install jax==0\.12\.0\.1"):
        versions.require_one_release("0.12.0.1", "0.11.2")


def test_failed_adaptation_of_a_module_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("moved")
    monkeypatch.setitem(__import__("sys").modules, "moved", module)
    with pytest.warns(UncheckedVersionWarning, match="could not adapt moved: .*'gone'"):
        when_imported("moved", lambda module: module.gone)  # pyright: ignore[reportAttributeAccessIssue]


def test_readme_has_the_table_of_results() -> None:
    results = json.loads((ROOT / "docs/versions.json").read_text())
    assert set(results) <= {checks.name_of(combination) for combination in CHECKED}
    assert f"{checks.BEGIN}{checks.table(results)}{checks.END}" in (ROOT / "README.md").read_text()


def test_gate_runs_a_checked_combination() -> None:
    """constraints.txt, with the Python of the gate."""
    pinned = dict(re.findall(r"^(\w+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    releases = {(combination.torch, combination.jax, combination.xdsl) for combination in CHECKED}
    assert tuple(versions.minor(pinned[name]) for name in ("torch", "jax", "xdsl")) in releases
    assert pinned["jax"] == pinned["jaxlib"]
