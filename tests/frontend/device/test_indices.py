"""The indices of the device in a rank: tpu:0, and for scripts written for CUDA tpu:LOCAL_RANK."""

from __future__ import annotations

import pytest
import torch

from lazytpu.frontend.device import indices


@pytest.fixture
def rank_1_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.mark.usefixtures("rank_1_of_2")
def test_a_rank_calls_its_device_by_its_number():
    tpu = torch.get_device_module("tpu")
    assert tpu.device_count() == torch.accelerator.device_count() == 2
    tpu.set_device(1)
    torch.accelerator.set_device_index(1)
    device = torch.device("tpu", 1)
    tensors = [
        torch.ones(2, device=device), torch.ones(2).to(device), torch.ones(2).tpu(1), torch.arange(2, device=device),
        torch.nn.Linear(2, 2, device=device).weight, torch.ones(2, device="tpu").to(device),
        torch.rand(2, device=device, generator=torch.Generator(device)),
    ]  # fmt: skip
    assert {str(tensor.device) for tensor in tensors} == {"tpu:0"}
    with device, tpu.device(1):
        assert torch.ones(1).device == torch.device("tpu", tpu.current_device())
    tpu.synchronize(1)


@pytest.mark.usefixtures("rank_1_of_2")
def test_shared_properties_accept_the_device_of_another_rank():
    tpu = torch.get_device_module("tpu")
    assert len({tpu.get_device_name(index) for index in range(tpu.device_count())}) == 1
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="2 available devices"), torch.random.fork_rng(device_type="tpu"):
        inside = torch.rand(2, device="tpu").tolist()
    assert torch.rand(2, device="tpu").tolist() == inside
    with pytest.raises(RuntimeError, match="invalid device tpu:2"):
        tpu.get_device_name(2)


@pytest.mark.usefixtures("rank_1_of_2")
def test_the_device_of_another_rank(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RuntimeError, match=r"tpu:2.*It is rank 1 of this machine, and its device is tpu:0 or tpu:1"):
        torch.ones(1, device="tpu:2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RuntimeError, match=r"tpu:1.*It is rank 0 of this machine, and its device is tpu:0;"):
        torch.get_device_module("tpu").set_device(1)


@pytest.mark.parametrize(("rank", "size"), [(None, None), ("1", None), ("1", "1"), ("x", "2"), ("-1", "2")])
def test_without_a_launcher_there_is_one(monkeypatch: pytest.MonkeyPatch, rank: str | None, size: str | None):
    for name, value in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert indices.own(0) and indices.own(None) and not indices.own(1)
    with pytest.raises(RuntimeError, match="this process drives one device, tpu:0"):
        torch.ones(1, device="tpu:1")
