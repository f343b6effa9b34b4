"""Files and processes: torch.save and torch.load in every form, safetensors, pickle, copies, other processes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import torch.multiprocessing
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

import lazytpu  # noqa: F401  (a spawned process imports this file without conftest.py)


def sample() -> torch.Tensor:
    return torch.arange(6.0).to("tpu").view(2, 3)


LOCATIONS: dict[str, tuple[Any, str]] = {
    "none": (None, "tpu"),
    "cpu": ("cpu", "cpu"),
    "tpu": ("tpu", "tpu"),
    "tpu:0": ("tpu:0", "tpu"),
    "device": (torch.device("tpu"), "tpu"),
    "device of the CPU": (torch.device("cpu"), "cpu"),
    "meta": ("meta", "meta"),
    "function that keeps": (lambda storage, location: storage, "cpu"),
    "function that moves": (lambda storage, location: storage.tpu(), "tpu"),
    "function that passes": (lambda storage, location: None, "tpu"),
    "dict to the CPU": ({"tpu:0": "cpu"}, "cpu"),
    "dict of another": ({"cuda:0": "cpu"}, "tpu"),
}
FORMATS = ("zip", "mapped", "old")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_load_wherever_it_is_mapped(tmp_path: Path, form: str, weights_only: bool) -> None:
    x = sample()
    saved = {"x": x, "row": x[1], "t": x.t(), "b": x.to(torch.bfloat16), "c": x.to(torch.complex64), "h": torch.ones(2)}
    torch.save(saved, tmp_path / "file", _use_new_zipfile_serialization=form != "old")
    for name, (location, where) in LOCATIONS.items():
        loaded = torch.load(
            tmp_path / "file", map_location=location, weights_only=weights_only, mmap=form == "mapped" or None
        )
        assert loaded["x"].device.type == where, name
        assert loaded["h"].device.type == (
            "cpu" if name in ("none", "function that passes") else loaded["h"].device.type
        )
        assert loaded["t"].stride() == (1, 3)
        if where != "meta":
            for key in ("x", "t", "b", "c"):
                assert torch.equal(loaded[key].cpu(), saved[key].cpu()), (name, key)
            loaded["x"][1].zero_()
            assert loaded["row"].tolist() == [0.0] * 3, "still one memory"


def test_an_index_that_is_not_there() -> None:
    file = io.BytesIO()
    torch.save(sample(), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="device_count"):
        torch.load(file, map_location="tpu:3")


def test_checkpoints_go_both_ways(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    for source, target in (("cpu", "tpu"), ("tpu", "cpu"), ("tpu", "tpu")):
        saved, restored = net().to(source), net().to(target)
        optimizer = torch.optim.Adam(saved.parameters())
        saved(torch.ones(4, 3, device=source)).sum().backward()
        optimizer.step()
        torch.save({"model": saved.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "file")
        loaded = torch.load(tmp_path / "file", map_location=target, weights_only=True)
        restored.load_state_dict(loaded["model"])
        again = torch.optim.Adam(restored.parameters())
        again.load_state_dict(loaded["optimizer"])
        assert again.state[next(restored.parameters())]["exp_avg"].device.type == target
        for a, b in zip(saved.state_dict().values(), restored.state_dict().values(), strict=True):
            assert torch.equal(a.cpu(), b.cpu())


def test_parameters_on_meta_are_assigned_from_a_mapped_file(tmp_path: Path) -> None:
    source = nn.Linear(3, 2).to("tpu")
    torch.save(source.state_dict(), tmp_path / "file")
    target = nn.Linear(3, 2, device="meta")
    target.load_state_dict(torch.load(tmp_path / "file", mmap=True, map_location="tpu"), assign=True)
    assert torch.equal(target.weight.cpu(), source.weight.cpu())
    third = nn.Linear(3, 2, device="meta").to_empty(device="tpu")
    third.load_state_dict(torch.load(tmp_path / "file", map_location="cpu"))
    assert torch.equal(third.weight.cpu(), source.weight.cpu())


VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.t(),
    "column": lambda x: x[:, 1],
    "expanded": lambda x: x.expand(2, 2, 3),
    "bool": lambda x: x > 2,
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "conjugated": lambda x: x.to(torch.complex64).conj(),
    "empty": lambda x: x[:0],
    "0-d": lambda x: x[0, 1],
    "parameter": lambda x: nn.Parameter(x),
    "requires grad": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("name", VALUES)
def test_pickle_and_deepcopy_keep_everything(name: str) -> None:
    x = VALUES[name](sample())
    for y in (*(pickle.loads(pickle.dumps(x, protocol=p)) for p in (2, 5)), copy.deepcopy(x)):
        assert type(y) is type(x)
        assert (y.device, y.dtype, y.stride(), y.requires_grad) == (x.device, x.dtype, x.stride(), x.requires_grad)
        assert torch.equal(y.cpu(), x.cpu())


def test_models_and_optimizers_are_copied_whole() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3, device="tpu")).sum().backward()
    optimizer.step()
    clone, _ = copy.deepcopy((model, optimizer))
    with torch.no_grad():
        clone[0].weight.zero_()
    assert model[0].weight.abs().sum().item() > 0
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly"):
        copy.deepcopy(model(torch.ones(2, 3, device="tpu")))
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    assert average(torch.ones(2, 3, device="tpu")).device.type == "tpu"


def test_safetensors(tmp_path: Path) -> None:
    x, file = sample(), tmp_path / "file"
    saved = {"x": x, "b": x.to(torch.bfloat16), "i": x.long()}
    save_file(saved, file, metadata={"made": "here"})
    for device in ("cpu", "tpu", "tpu:0"):
        loaded = load_file(file, device=device)
        assert {t.device.type for t in loaded.values()} == {device[:3]}
        assert all(torch.equal(loaded[k].cpu(), saved[k].cpu()) and loaded[k].dtype is saved[k].dtype for k in saved)
    with safetensors.safe_open(file, "pt", device="tpu") as opened:
        assert sorted(opened.keys()) == ["b", "i", "x"]
        assert opened.metadata() == {"made": "here"}
        assert opened.get_tensor("x").device.type == "tpu"
        sliced = opened.get_slice("x")
        assert sliced.get_shape() == [2, 3]
        assert sliced[:, 1].tolist() == [1.0, 4.0]
        assert sliced[:, 1].device.type == "tpu"
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"one": x, "other": x}, file)


def test_safetensors_of_models_with_tied_weights(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
            self.other.weight = self.one.weight

    model = Tied().to("tpu")
    save_model(model, str(tmp_path / "file"))
    for device in ("cpu", "tpu"):
        loaded = Tied().to("tpu")
        load_model(loaded, tmp_path / "file", device=device)
        assert loaded.other.weight is loaded.one.weight
        assert torch.equal(loaded.other.weight.cpu(), model.one.weight.cpu())


def _double(questions: Any, answers: Any) -> None:
    """Runs in a separate process."""
    x, model = questions.get()
    answers.put((x * 2, model(x).tolist(), str(x.device)))


def test_tensors_go_to_other_processes_by_value() -> None:
    context = torch.multiprocessing.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    model = nn.Linear(3, 1).to("tpu")
    process = context.Process(target=_double, args=(questions, answers))
    process.start()
    x = sample()[1]
    questions.put((x, model))
    doubled, result, device = answers.get(timeout=120)
    process.join()
    assert doubled.device.type == "tpu"
    assert doubled.tolist() == [6.0, 8.0, 10.0]
    torch.testing.assert_close(result, model(x).tolist())
    assert device == "tpu:0"
