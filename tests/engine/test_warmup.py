"""lazytpu.warmup: compile the programs of a function, or load a library of programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import lazytpu
from lazytpu.options import options
from lazytpu.runtime.cache.library import BadLibrary, pack
from lazytpu.runtime.cache.store import Store
from tests import zygote


def test_warmup_runs_a_function_and_compiles_its_programs(empty_cache: Path) -> None:
    weight = torch.ones(13, 5).to("tpu")

    def step(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        weight.mul_(0.5)
        return (x @ weight).relu() * scale

    x = torch.ones(2, 13).to("tpu")
    warmed = lazytpu.warmup(step, x, scale=3.0)
    assert warmed.compiled >= 1
    assert torch.equal(warmed.value.cpu(), torch.full((2, 5), 19.5))
    assert torch.equal(weight.cpu(), torch.full((13, 5), 0.5)), "the effects of the function persist"
    assert str(warmed).startswith(f"{warmed.compiled:,} programs compiled and 0 loaded in ")
    again = lazytpu.warmup(step, x, scale=2.0)
    assert (again.compiled, again.loaded) == (0, 0)


def test_ops_pending_before_are_not_counted(empty_cache: Path) -> None:
    pending = torch.ones(17, 3).to("tpu").cos()
    warmed = lazytpu.warmup(lambda: None)
    assert (warmed.compiled, warmed.value) == (0, None)
    assert pending.shape == (17, 3)


def test_error_of_the_function_is_raised_and_settings_are_restored() -> None:
    before = options.background_compile
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lazytpu.warmup(lambda: torch.ones(2, 3, device="tpu") @ torch.ones(2, 3, device="tpu"))
    assert options.background_compile == before


def test_arguments_require_a_function(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a function and its arguments, or the path of a library"):
        lazytpu.warmup(tmp_path / "library.zip", 1)  # pyright: ignore


SCRIPT = """
import json, sys
import torch
import lazytpu
found = lazytpu.warmup(sys.argv[1]) if len(sys.argv) > 1 else None
layer = torch.nn.Linear(6, 3).to("tpu")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(2):
    layer(torch.ones(4, 6, device="tpu")).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
lazytpu.sync()
stored = None if found is None else [found.stored, len(found.refused)]
print(json.dumps([lazytpu.metrics()["compiles"], lazytpu.metrics()["cache_hits"], stored]))
"""


def run(cache: Path, *arguments: str) -> list[object]:
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(cache), "LAZYTPU_BACKGROUND_COMPILE": "0"}
    done = zygote.run(["-c", SCRIPT, *arguments], env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_first_iteration_with_a_library_compiles_nothing(tmp_path: Path) -> None:
    compiles, hits, _ = run(tmp_path / "here")
    assert compiles and not hits
    count = pack(Store(tmp_path / "here"), tmp_path / "library.zip")
    lists = len(Store(tmp_path / "there").entries("list"))
    assert lists == 0
    first = run(tmp_path / "there", str(tmp_path / "library.zip"))
    assert first[:2] == [0, compiles]
    assert first[2] in ([count, 0], [count - 2, 0]), "lazytpu stores two lists at its start"


def test_library_without_compatible_programs_is_refused(tmp_path: Path, empty_cache: Path) -> None:
    kept = Store(tmp_path / "cache")
    kept.put("program", "ab" * 32, b"code", {"name": "step", "made_for": {"platform": "tpu"}})
    pack(kept, tmp_path / "library.zip")
    with pytest.raises(ValueError, match=r"nothing in .*library\.zip can be used here(.|\n)*platform: tpu there, "):
        lazytpu.warmup(tmp_path / "library.zip")


def test_damaged_library_is_refused(tmp_path: Path, empty_cache: Path) -> None:
    (tmp_path / "library.zip").write_bytes(b"?")
    with pytest.raises(BadLibrary):
        lazytpu.warmup(str(tmp_path / "library.zip"))
    with pytest.raises(FileNotFoundError):
        lazytpu.warmup(str(tmp_path / "nothing.zip"))


def test_library_requires_a_disk_cache(tmp_path: Path) -> None:
    with options(cache_dir=None), pytest.raises(ValueError, match="LAZYTPU_CACHE_DIR"):
        lazytpu.warmup(tmp_path / "library.zip")
