"""Ahead-of-time compilation for another machine stores programs under the keys that a process on that machine uses."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lazytpu.inspection.show import main
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.errors import CompileError, PlatformError
from lazytpu.runtime.tpu import ahead, topologies
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from tests import zygote

pytestmark = pytest.mark.xdist_group("ahead")  # the tests share one dump

SCRIPT = """
import torch
import lazytpu
layer = torch.nn.Linear(6, 3).to("tpu")
optimizer = torch.optim.Adam(layer.parameters())
for step in range(3):
    loss = layer(torch.ones(4, 6, device="tpu")).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item(), lazytpu.metrics()["compiles"], lazytpu.metrics()["cache_hits"])
"""


def run(**environment: str) -> list[float]:
    variables = {**os.environ, "LAZYTPU_BACKGROUND_COMPILE": "0", **environment}
    done = zygote.run(["-c", f"import torch; torch.manual_seed(0); {SCRIPT}"], env=variables)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, int]:
    """The folder of LAZYTPU_DUMP, the script's last loss, and the number of programs."""
    folder = tmp_path_factory.mktemp("dumped")
    loss, compiles, _ = run(LAZYTPU_DUMP=str(folder), LAZYTPU_CACHE_DIR="off")
    return folder, loss, int(compiles)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile ahead for the machine of the test in place of a TPU, so that the programs can run."""

    def compile_ahead(module: ir.Module, *, name: str, options: Mapping[str, bool | int | str] | None = None) -> bytes:
        payload = client.serialize(client.compile_module(module, name=name, options=options))
        assert payload is not None
        return payload

    monkeypatch.setattr(topologies, "aim_at", lambda topology: None)
    monkeypatch.setattr(topologies, "compile_ahead", compile_ahead)


def test_process_on_the_target_machine_compiles_nothing(
    here: None, dumped: tuple[Path, float, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dump, loss, compiles), cache = dumped, tmp_path / "cache"
    assert ahead.main(["here", str(cache), str(dump)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == compiles and all(" bytes, compiled in " in line for line in lines)
    assert len(Store(cache).entries("trace")) == len(Store(cache).entries("program")) == compiles
    assert run(LAZYTPU_CACHE_DIR=str(cache)) == [loss, 0, compiles]


def test_program_that_does_not_compile_is_reported_and_the_others_compile(
    here: None,
    dumped: tuple[Path, float, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (dump, _, compiles), cache = dumped, tmp_path / "cache"
    compile_ahead = topologies.compile_ahead

    def refuse_the_first(module: ir.Module, **options: object) -> bytes:
        monkeypatch.setattr(topologies, "compile_ahead", compile_ahead)
        raise CompileError("step", "no such op on a TPU\nwith details")

    monkeypatch.setattr(topologies, "compile_ahead", refuse_the_first)
    assert ahead.main(["here", str(cache), str(dump)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": not compiled: no such op on a TPU")
    assert len(Store(cache).entries("program")) == len(Store(cache).entries("trace")) == compiles - 1


DAMAGE: dict[str, Callable[[Path], object]] = {
    "its StableHLO is not what was written with it": lambda path: _changed(path.with_suffix(".stablehlo.mlir"), "\n"),
    "another lazytpu, or other libraries under it": lambda path: _with(path, translators={"torch": "1.0"}),
    r"it is no dump of lazytpu's \(KeyError\('records'\)\)": lambda path: _with(path, records=None),
    r"it is no dump of lazytpu's \(FileNotFound": lambda path: path.with_suffix(".stablehlo.mlir").unlink(),
    r"it is no dump of lazytpu's \(JSON": lambda path: path.write_text("{"),
}


def _changed(path: Path, more: str) -> None:
    path.write_text(path.read_text() + more)


def _with(path: Path, **fields: object) -> None:
    about = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in about.items() if value is not None}))


@pytest.mark.parametrize("reason", DAMAGE)
def test_inconsistent_dump_is_not_compiled(
    here: None, dumped: tuple[Path, float, int], tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    """A program stored under the key of another trace would compute wrong results."""
    name = min(dumped[0].glob("*.json")).stem
    for path in dumped[0].glob(f"{name}.*"):
        shutil.copy(path, tmp_path)
    DAMAGE[reason](tmp_path / f"{name}.json")
    assert ahead.main(["here", str(tmp_path / "cache"), str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(f"{name}: not compiled: {reason}", line)
    assert Store(tmp_path / "cache").entries() == []


def test_unknown_topology_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With libtpu and without."""
    (tmp_path / "000-step.json").write_text("{}")
    with pytest.raises(PlatformError, match=r"cannot compile for moon:1: (.|\n)*pip install 'lazytpu\[tpu\]'"):
        ahead.compile_dumps("moon:1", [tmp_path], tmp_path / "cache")
    library = tmp_path / "library.zip"
    assert main(["pack", str(library), "--topology", "moon:1", "--dump", str(tmp_path)]) == 2
    assert "cannot compile for moon:1" in capsys.readouterr().err
    assert not library.exists()


def test_folder_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run the script with LAZYTPU_DUMP="):
        ahead.compile_dumps("v6e:2x2", [tmp_path], tmp_path / "cache")


def test_topology_option_requires_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(tmp_path / "library.zip"), "--topology", "v6e:2x2"]) == 2
    assert "go together" in capsys.readouterr().err
