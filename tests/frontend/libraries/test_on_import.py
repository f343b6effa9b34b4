"""when_imported: acts once, right after the module, and not when the module is only searched for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lazytpu.frontend.libraries.on_import import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a unique name, with a module `inner` that it imports."""
    name = f"awaited_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "inner.py").write_text("value = 1\n")
    (tmp_path / name / "__init__.py").write_text("from . import inner\nseen = inner.value\n")
    (tmp_path / "broken_awaited.py").write_text("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_action_runs_between_the_module_and_its_importer(package: str) -> None:
    def change(module: ModuleType) -> None:
        module.value += 1  # pyright: ignore[reportAttributeAccessIssue]

    when_imported(f"{package}.inner", change)
    assert importlib.util.find_spec(package) is not None
    assert package not in sys.modules
    imported = importlib.import_module(package)
    assert imported.seen == 2
    assert "exec_module" not in vars(imported.inner.__spec__.loader)
    importlib.reload(imported.inner)
    assert imported.inner.value == 1, "once"


def test_looking_for_a_module_does_not_import_it(package: str) -> None:
    acted: list[str] = []
    when_imported(package, lambda module: acted.append(module.__name__))
    for _ in range(2):
        assert importlib.util.find_spec(package) is not None
    assert acted == []
    importlib.import_module(package)
    assert acted == [package]


def test_the_action_runs_at_once_for_an_imported_module(package: str) -> None:
    importlib.import_module(package)
    acted: list[str] = []
    when_imported(package, lambda module: acted.append(module.__name__))
    assert acted == [package]


def test_the_action_runs_when_a_failed_import_succeeds(package: str, tmp_path: Path) -> None:
    acted: list[str] = []
    when_imported("broken_awaited", lambda module: acted.append(module.__name__))
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("broken_awaited")
    assert acted == []
    (tmp_path / "broken_awaited.py").write_text("value = 'mended'\n")
    importlib.invalidate_caches()
    importlib.import_module("broken_awaited")
    assert acted == ["broken_awaited"]


@pytest.mark.parametrize("end", ["", "raise ValueError('broken')\n"])
def test_the_action_runs_at_the_end_of_an_import_that_asks_for_it(
    package: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script may import a library first, and the library torch."""
    asking = tmp_path / f"{package}_asking.py"
    hook = "from lazytpu.frontend.libraries.on_import import when_imported\nwhen_imported(__name__, print)\n"
    asking.write_text(hook + "print('end')\n" + end)
    if end:
        with pytest.raises(ValueError, match="broken"):
            importlib.import_module(asking.stem)
        assert capsys.readouterr().out == "end\n"
        asking.write_text("print('mended')\n")
        importlib.invalidate_caches()
    module = importlib.import_module(asking.stem)
    assert capsys.readouterr().out == f"{'mended' if end else 'end'}\n{module}\n"


def test_modules_that_do_not_exist_are_still_not_found() -> None:
    when_imported("no_such_library_anywhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_library_anywhere"):
        importlib.import_module("no_such_library_anywhere")
