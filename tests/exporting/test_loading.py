"""Saved programs: their files, damage, and calls of the loaded programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.autograd import forward_ad

import lazytpu
from lazytpu.exporting import safetensors
from lazytpu.exporting.folder import digest
from tests.exporting.models import Cache, Function


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    module = Function(lambda x, pair, *, scale=2.0: {"y": x * scale + pair[0]})
    module.register_buffer("unused", torch.ones(1))
    args = (torch.ones(2, 3), [torch.zeros(3)]), {"scale": 3.0}
    return lazytpu.export(module, *args).save(tmp_path_factory.mktemp("saved") / "program")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exported = lazytpu.export(Cache(), (torch.ones(3), torch.zeros(3)))
    return exported.save(tmp_path_factory.mktemp("cache") / "program")


# ---- calls


@pytest.mark.parametrize("mode", ["fused", "lazy", "strict", "debug"])
def test_state_persists_between_calls(mode: str, cache: Path):
    loaded, module = lazytpu.export.load(cache), Cache()
    total, wanted = torch.zeros(3, device="tpu"), torch.zeros(3)
    with lazytpu.mode(mode):
        for i in range(3):
            result = loaded(torch.full((3,), float(i), device="tpu"), total)
            lazytpu.mark_step()
            expected = module(torch.full((3,), float(i)), wanted)
        assert result.tolist() == expected.tolist()
        assert total.tolist() == wanted.tolist()
        assert loaded.weights["keys"].tolist() == module.keys.tolist()
        assert loaded.weights["length"].item() == 3


def test_call_is_one_op_of_one_program(cache: Path):
    loaded, total = lazytpu.export.load(cache), torch.zeros(3, device="tpu")
    with lazytpu.mode("lazy"):
        lazytpu.mark_step()
        y = loaded(torch.ones(3, device="tpu"), total) * 2
        lazytpu.mark_step()
    text = lazytpu.graphs()[-1].text()
    assert text.count("lazytpu.template exported") == 1 and "lazytpu.mul" in text
    assert "test_loading.py" in text
    assert y.tolist() == [2.0] * 3


def test_backward_pass_explains_its_refusal(saved: Path):
    x = torch.ones(2, 3, device="tpu", requires_grad=True)
    y = lazytpu.export.load(saved)(x, [torch.zeros(3, device="tpu")], scale=3.0)["y"]
    with pytest.raises(RuntimeError, match="has no derivative"):
        y.sum().backward()


# raised by torch itself, for forward-mode derivatives
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacfwd])
def test_transforms_explain_their_refusal(saved: Path, transform: Any):
    loaded, y = lazytpu.export.load(saved), [torch.zeros(3, device="tpu")]
    x = torch.ones(2, 3, device="tpu")
    with pytest.raises(NotImplementedError, match=r"no derivative and no batched form.*torch.func"):
        transform(lambda x: loaded(x, y, scale=3.0)["y"].sum())(
            x.expand(4, 2, 3) if transform is torch.func.vmap else x
        )
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        loaded(forward_ad.make_dual(x, x), y, scale=3.0)


def wrong(match: str, error: type[Exception], folder: Path, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error, match=match):
        lazytpu.export.load(folder)(*args, **kwargs)


def test_wrong_arguments_are_refused(saved: Path):
    x, y = torch.ones(2, 3, device="tpu"), torch.zeros(3, device="tpu")
    wrong(
        r"'args_0': expected a tensor float32\[2, 3\] on tpu, got float32\[3, 3\]",
        ValueError,
        saved,
        y.repeat(3, 1),
        [y],
        scale=3.0,
    )
    wrong(r"'args_0': expected .*, got int64\[2, 3\]", ValueError, saved, x.long(), [y], scale=3.0)
    wrong(r"'args_0': expected .* on cpu; move it", ValueError, saved, x.cpu(), [y], scale=3.0)
    wrong(r"'args_1_0': expected .*, got float", TypeError, saved, x, [1.0], scale=3.0)
    wrong(r"'scale' was 3.0 when .* got 3", ValueError, saved, x, [y], scale=3)
    wrong(r"arguments \(args, kwargs\) \(\(\*, \[\*\]\), \{'scale': \*\}\).*got \(\(\*,", TypeError, saved, x, y)
    with pytest.raises(ValueError, match="draws no random numbers"):
        lazytpu.export.load(saved).seeded(1)


# ---- files


def test_saved_files(saved: Path):
    names = ["cpu.jax", "cpu.stablehlo", "manifest.json", "tpu.jax", "tpu.stablehlo", "weights.safetensors"]
    assert sorted(path.name for path in saved.iterdir()) == names
    assert not list(saved.parent.glob(".*"))
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["signature"]["weights"] == []  # it uses no weights
    assert manifest["platforms"]["cpu"]["custom_calls"] == [] and manifest["needs_x64"] is False


def test_only_an_export_is_replaced(saved: Path, tmp_path: Path):
    exported = lazytpu.export(nn.ReLU(), (torch.ones(2),), platforms="cpu")
    folder = Path(shutil.copytree(saved, tmp_path / "program"))
    assert exported.save(folder) == folder
    assert not (folder / "tpu.jax").exists() and not list(tmp_path.glob(".*"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="is not an exported program"):
        exported.save(tmp_path / "mine")
    with pytest.raises(ValueError, match="expected a version"):
        exported.save(folder, version="99.0.0")
    assert lazytpu.export.load(folder).manifest["name"] == "ReLU"


def truncate(folder: Path) -> None:
    path = folder / "cpu.stablehlo"
    path.write_bytes(path.read_bytes()[:-9])


def flip(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def remove(folder: Path) -> None:
    (folder / "cpu.stablehlo").unlink()


def edit(**changes: Any) -> Callable[[Path], None]:
    def edited(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        for key, value in changes.items():
            if value is None:
                del manifest[key]
            else:
                manifest[key] = value
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return edited


def not_portable(folder: Path) -> None:
    path = folder / "cpu.stablehlo"
    path.write_bytes(b"ML\xefR" + bytes(64))
    about = {"bytes": path.stat().st_size, "sha256": digest(path)}
    files = json.loads((folder / "manifest.json").read_text())["files"]
    edit(files={**files, path.name: about})(folder)


DAMAGE = [
    (truncate, "damaged: cpu.stablehlo has .* bytes instead of"),
    (flip, "damaged: weights.safetensors is not what was written"),
    (remove, "damaged: cpu.stablehlo is missing"),
    (not_portable, "not a portable artifact"),
    (edit(format=99), r"format 99, written by lazytpu .*Update lazytpu"),
    (edit(stablehlo="99.1.0"), r"StableHLO 99.1.0, and this jaxlib reads .*update jax"),
    (edit(signature=None), "damaged: manifest.json has no signature: KeyError: 'signature'"),
    (edit(signature={"weights": 3}), "damaged: manifest.json"),
    (edit(files=None), "damaged: manifest.json lacks something: KeyError: 'files'"),
    (edit(weights="../weights.safetensors"), "damaged: manifest.json names a file"),
    (edit(platforms={}), "exported for .*, and this process runs on cpu"),
    (lambda folder: (folder / "manifest.json").write_text("{"), "damaged: manifest.json is not JSON"),
    (lambda folder: (folder / "manifest.json").write_text("[]"), "damaged: manifest.json names no format"),
]


@pytest.mark.parametrize(("damage", "match"), DAMAGE, ids=[match for _, match in DAMAGE])
def test_damaged_files_are_refused(damage: Callable[[Path], None], match: str, cache: Path, tmp_path: Path):
    folder = Path(shutil.copytree(cache, tmp_path / "program"))
    damage(folder)
    with pytest.raises(ValueError, match=match):
        lazytpu.export.load(folder)


def test_missing_program_is_reported(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"expected a folder that lazytpu.export saved"):
        lazytpu.export.load(tmp_path / "nothing")


# ---- the format of weights


def test_safetensors_agrees_with_the_library(tmp_path: Path):
    tensors = {
        "scalar": torch.tensor(1.5),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "empty": torch.empty(0, 3, dtype=torch.int64),
        **{str(dtype): torch.tensor([0, 1, 3]).to(dtype) for dtype in safetensors._NAMES},
    }
    safetensors.write(tmp_path / "ours", tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs")
    for tensors_read in (
        load_file(tmp_path / "ours"),
        safetensors.read(tmp_path / "theirs"),
        safetensors.read(tmp_path / "ours"),
    ):
        assert tensors_read.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert tensors_read[name].dtype is tensor.dtype and torch.equal(tensors_read[name], tensor)


@pytest.mark.parametrize("data", [b"", b"\x10", b"\xff" * 16, b"\x02" + bytes(7) + b"[]"])
def test_file_that_is_not_safetensors_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "weights").write_bytes(data)
    with pytest.raises(ValueError, match="not a file of safetensors"):
        safetensors.read(tmp_path / "weights")


def test_dtype_that_the_format_lacks_is_refused():
    with pytest.raises(NotImplementedError, match=r"'w' is torch.complex128, which safetensors cannot hold"):
        safetensors.check_dtype("w", torch.complex128)
