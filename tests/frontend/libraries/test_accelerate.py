"""Hugging Face accelerate: its loop on the device agrees with the CPU's, including checkpoints and mixed precision."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.commands import launch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, get_max_memory, set_seed
from torch import nn

from lazytpu.frontend.libraries.on_import import UncheckedVersionWarning, warn_unchecked


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Reset the state that accelerate keeps for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def make(**options: Any) -> tuple[Accelerator, Any, Any, Any, Any]:
    accelerator = Accelerator(**options)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randint(0, 4, (16,)))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return accelerator, *accelerator.prepare(model, optimizer, loader, scheduler)


def train(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, scheduler: Any) -> list[float]:
    losses = []
    for x, y in loader:
        assert x.device == accelerator.device or accelerator.device.index is None
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
        assert accelerator.gather_for_metrics(y).shape == y.shape
    return losses


def test_the_loop_runs_on_the_device_and_agrees_with_the_cpu() -> None:
    prepared = make()
    assert prepared[0].device.type == "tpu"
    assert next(prepared[1].parameters()).device.type == "tpu"
    got = train(*prepared)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    prepared = make(cpu=True)
    assert prepared[0].device.type == "cpu"
    torch.testing.assert_close(got, train(*prepared), rtol=1e-4, atol=1e-5)


def test_accumulation_of_gradients() -> None:
    got = train(*make(gradient_accumulation_steps=2))
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.testing.assert_close(got, train(*make(gradient_accumulation_steps=2, cpu=True)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision(precision: str) -> None:
    accelerator, model, *loop_state = make(mixed_precision=precision)
    assert accelerator.mixed_precision == precision
    assert (accelerator.scaler is not None) == (precision == "fp16")
    losses = train(accelerator, model, *loop_state)
    assert all(0 < loss < 3 for loss in losses)
    assert next(model.parameters()).dtype is torch.float32
    with accelerator.autocast():
        x = torch.ones(2, 8, device="tpu")
        assert (x @ x.t()).dtype is (torch.bfloat16 if precision == "bf16" else torch.float16)


def test_state_is_saved_and_loaded(tmp_path: Path) -> None:
    accelerator, model, optimizer, loader, scheduler = make()
    train(accelerator, model, optimizer, loader, scheduler)
    accelerator.save_state(str(tmp_path))
    drawn = torch.rand(4, device="tpu")
    continued = train(accelerator, model, optimizer, loader, scheduler)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(4, device="tpu").cpu(), drawn.cpu()), "the device's random numbers go on"
    assert train(accelerator, model, optimizer, loader, scheduler) == continued
    accelerator.save_model(model, str(tmp_path / "model"))
    assert (tmp_path / "model/model.safetensors").exists()
    assert next(accelerator.unwrap_model(model).parameters()).device.type == "tpu"


def test_seeds_reach_the_device() -> None:
    set_seed(3)
    first = torch.rand(3, device="tpu").tolist()
    set_seed(3)
    assert torch.rand(3, device="tpu").tolist() == first


def test_the_device_counts_as_memory() -> None:
    limits = get_max_memory()
    assert limits[0] > 0
    assert "cpu" in limits
    assert get_max_memory({0: "1GB", "cpu": 5}) == {0: 10**9, "cpu": 5}


def test_other_releases_are_warned_about() -> None:
    with pytest.warns(UncheckedVersionWarning, match=r"accelerate is 9\.1\.0; .* checked against 1\.15"):
        warn_unchecked("accelerate", "9.1.0", ("1.15",))
    warn_unchecked("accelerate", "1.15.7", ("1.15",))


@pytest.mark.parametrize(
    ("local_rank", "asked", "expected"),
    [
        ("0", None, ("tpu", DistributedType.MULTI_NEURON)),
        ("0", "tpu", ("tpu", DistributedType.MULTI_NEURON)),
        ("0", "gloo", ("gloo", DistributedType.NO)),
        ("-1", None, (None, DistributedType.NO)),
    ],
)
def test_the_process_group_is_tpu_in_a_job_unless_another_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, asked: str | None, expected: tuple[str | None, DistributedType]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("ACCELERATE_BYPASS_DEVICE_MAP", "false")  # its changes are undone
    state = PartialState.__new__(PartialState)
    assert state._prepare_backend(False, False, asked) == expected


def test_parameters_of_fsdp_are_created_on_the_device() -> None:
    """Rank 0 sends them to the other ranks, by default in `accelerate launch` and transformers."""
    options: Any = FullyShardedDataParallelPlugin(fsdp_version=1, sync_module_states=True)
    with torch.device("meta"):
        module = nn.Linear(2, 3)
    assert options.param_init_fn(module).weight.device.type == "tpu"


@pytest.mark.parametrize(("processes", "cpu", "launched"), [(2, False, True), (1, False, False), (2, True, False)])
def test_the_requested_number_of_processes_is_launched(
    processes: int, cpu: bool, launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(launch, "multi_gpu_launcher", started.append)
    monkeypatch.setattr(launch, "prepare_simple_launcher_cmd_env", lambda args: (["true"], {}))
    launch.simple_launcher(Namespace(num_processes=processes, cpu=cpu))
    assert bool(started) is launched
