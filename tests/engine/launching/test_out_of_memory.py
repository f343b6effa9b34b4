"""Exhausted device memory: torch's exception, its report, and the tensors that stay valid."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.engine.launching.out_of_memory import OutOfMemoryError
from lazytpu.runtime.buffers.buffer import MEMORY
from lazytpu.runtime.errors import CompileError, OutOfMemory, RunError, is_full
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program

TOO_MANY = 2**39  # floats: 2 TiB
# libtpu 0.0.42 for a v5e, and an older one for a v4.
TPU_SAYS = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (40.00G) exceeds "
    "available HBM (15.75G)."
)
TPU_SAID = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G of 30.75G "
    "hbm. Exceeded hbm capacity by 33.05G."
)


@pytest.fixture(autouse=True)
def quiet() -> None:
    lazytpu.sync()
    gc.collect()


def no_memory(*args: Any) -> Any:
    """Raise as the launch of an executable on a TPU does; takes the place of a launch."""
    raise client.XlaError("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 5.00G.")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A switch: with True, every launch runs out of memory; with False, launches succeed."""
    run, switch = Program.run, {"full": False}

    def run_or_not(program: Program, arrays: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            if switch["full"]:
                patched.setattr(program, "_execute", no_memory)
            return run(program, arrays)

    monkeypatch.setattr(Program, "run", run_or_not)
    return lambda on: switch.update(full=on)


def impossible(x: torch.Tensor) -> torch.Tensor:
    return x.sum().expand(TOO_MANY) * 2  # impossible


def without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the limit on tensor sizes at the call, so that only the run of the program exceeds memory."""
    monkeypatch.setattr("lazytpu.engine.launching.out_of_memory.ROOM", float("inf"))


def test_program_too_large_is_refused_before_donation(monkeypatch: pytest.MonkeyPatch) -> None:
    without_bound(monkeypatch)
    x, p = torch.ones(8).to("tpu"), torch.ones(4).to("tpu")
    counted = torch.accelerator.memory_stats()["num_ooms"]
    p.add_(1)
    big = impossible(x)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        lazytpu.mark_step()
    error = caught.value
    assert isinstance(error, OutOfMemoryError) and isinstance(error, OutOfMemory) and isinstance(error, RunError)
    assert (error.stage, error.program) == ("run", "impossible")
    assert error.memory is not None and error.memory.peak > 4 * TOO_MANY
    largest = error.results[0]
    assert largest.nbytes == 4 * TOO_MANY and largest.line is not None and "test_out_of_memory.py" in largest.line
    text = str(error)
    for phrase in (
        "too small to run impossible",
        "It needs 2.00 TiB",
        "Alive before",
        "Alive after",
        "aten.mul.Tensor",
    ):
        assert phrase in text
    assert p.tolist() == [1.0] * 4, "undone"
    assert x.tolist() == [1.0] * 8
    with pytest.raises(torch.OutOfMemoryError, match="too small to run impossible"):
        big.sum()
    assert (p + x[:4]).tolist() == [2.0] * 4
    assert torch.accelerator.memory_stats()["num_ooms"] == counted + 1
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["num_ooms"] == 0


def test_xla_out_of_memory_keeps_all_but_overwritten_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwritten tensors may be lost, since their memory was donated; all other tensors stay valid."""
    monkeypatch.setattr(MEMORY, "limit", float("inf"))
    monkeypatch.setattr(MEMORY, "available", lambda: float("inf"))
    monkeypatch.setattr(MEMORY, "peak", MEMORY.peak)
    x, p = torch.ones(8).to("tpu"), torch.ones(4).to("tpu")
    p.add_(1)
    big = impossible(x)
    with pytest.raises(torch.OutOfMemoryError, match="Out of memory allocating") as caught:
        lazytpu.mark_step()
    lost = caught.value.lost  # pyright: ignore[reportAttributeAccessIssue]
    if lost:
        with pytest.raises(torch.OutOfMemoryError):
            p.cpu()
        assert f"contents of {len(lost)} tensors" in caught.value.__notes__[0]
    else:
        assert p.tolist() == [1.0] * 4
    assert x.tolist() == [1.0] * 8
    assert (x * 2).tolist() == [2.0] * 8
    assert big.shape == (TOO_MANY,)


def train(batches: list[torch.Tensor], full: Callable[[bool], None] | None) -> list[torch.Tensor]:
    """Parameters after a step on each batch; with `full`, the second step fails on a double batch and is repeated."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        lazytpu.mark_step()

    for i, batch in enumerate(batches):
        if full is not None and i == 1:
            double = batch.repeat(2, 1)
            lazytpu.mark_step()
            full(True)
            with pytest.raises(torch.OutOfMemoryError) as caught:
                step(double)
            full(False)
            names = {value.name: value.category for value in caught.value.before.values}  # pyright: ignore
            assert names["0.weight"] == "parameters" and names["2.bias.momentum_buffer"] == "optimizer state"
            assert "0.weight" in {value.name for value in caught.value.results}  # pyright: ignore
        step(batch)
    return [p.detach().cpu() for p in model.parameters()]


def test_step_out_of_memory_has_no_effect(full: Callable[[bool], None]) -> None:
    """Training continues with a smaller batch from the parameters before the failed step."""
    batches = [torch.linspace(-1, i, 18).reshape(3, 6).to("tpu") for i in range(3)]
    for got, expected in zip(train(batches, full), train(batches, None), strict=True):
        assert torch.equal(got, expected)


def test_contents_shared_again_after_an_undo_are_not_donated(full: Callable[[bool], None]) -> None:
    x = torch.ones(5).to("tpu")
    copy = x.clone()
    x.add_(1)
    full(True)
    with pytest.raises(torch.OutOfMemoryError):
        lazytpu.mark_step()
    full(False)
    x.mul_(3)
    lazytpu.mark_step()
    assert (x.tolist(), copy.tolist()) == ([3.0] * 5, [1.0] * 5)


def test_uninitialized_memory_is_restored(full: Callable[[bool], None]) -> None:
    x = torch.empty(3, device="tpu")
    x.fill_(2)
    full(True)
    with pytest.raises(torch.OutOfMemoryError):
        lazytpu.mark_step()
    full(False)
    assert x.tolist() == [0.0] * 3
    assert x.fill_(2).tolist() == [2.0] * 3


@pytest.mark.usefixtures("empty_cache")
def test_compile_time_out_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, name: str, **kwargs: Any) -> Any:
        raise CompileError(name, TPU_SAYS)

    p = torch.ones(7, 31).to("tpu")
    p.mul_(5)
    kept = p.exp()
    with monkeypatch.context() as patched:
        patched.setattr(client, "compile_module", refuse)
        with pytest.raises(torch.OutOfMemoryError, match=r"does not fit.*\n.*available HBM \(15.75G\)") as caught:
            lazytpu.mark_step()
    assert caught.value.stage == "compile"  # pyright: ignore[reportAttributeAccessIssue]
    assert p.tolist() == [[1.0] * 31] * 7
    assert p.mul_(5).sum().item() == 5 * 7 * 31
    assert kept.shape == (7, 31)


def test_upload_out_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise client.XlaError("RESOURCE_EXHAUSTED: Attempting to allocate 1.00G. That was not possible.")

    kept = torch.ones(4).to("tpu")
    with monkeypatch.context() as patched:
        patched.setattr(client.private, "device_put", refuse)
        with pytest.raises(torch.OutOfMemoryError, match=r"too small for data from the host.*\n.*1.00G"):
            torch.ones(9).to("tpu")
    assert torch.ones(9).to("tpu").sum().item() == 9
    assert kept.tolist() == [1.0] * 4


def test_exception_keeps_no_memory_alive(full: Callable[[bool], None]) -> None:
    before = MEMORY.live
    tensors = [torch.ones(1 << 14).to("tpu")]
    full(True)
    tensors.append(tensors[0] * 2)
    tensors[0].add_(1)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        lazytpu.mark_step()
    full(False)
    gc.disable()
    try:
        tensors.clear()
        assert MEMORY.live == before
    finally:
        gc.enable()
    assert caught.value.__traceback__ is not None


def test_advice_names_memory_that_could_be_freed(full: Callable[[bool], None]) -> None:
    model = nn.Linear(256, 256).to("tpu")
    x = torch.ones(2, 256).to("tpu")
    model(x).sum().backward()
    lazytpu.mark_step()  # the gradients are results
    old = model.weight.detach().clone()  # shares the value that the step overwrites
    with torch.no_grad():
        model.weight.add_(1)
    full(True)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        lazytpu.mark_step()
    full(False)
    advice = " ".join(caught.value.advice)  # pyright: ignore[reportAttributeAccessIssue]
    assert "optimizer.zero_grad()" in advice
    assert "cannot give their memory" in advice and "drop them (weight)" in advice
    assert torch.equal(old.cpu(), model.weight.detach().cpu())


@pytest.mark.parametrize(
    ("reason", "full"),
    [
        (TPU_SAYS, True),
        (TPU_SAID, True),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.", True),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 32.42M of 16.00M vmem.", False),
        ("INTERNAL: something else", False),
    ],
)
def test_exhausted_device_memory_is_recognized(reason: str, full: bool) -> None:
    assert is_full(reason) == full
