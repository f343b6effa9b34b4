"""No size ends the process: a tensor too large for any machine is rejected at the call, and the device stays usable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import lazytpu
from lazytpu.engine import device
from lazytpu.engine.launching import out_of_memory
from lazytpu.ir.types import LARGEST, TooLarge, tensor_type
from lazytpu.runtime.buffers.buffer import LARGE, MEMORY
from lazytpu.runtime.errors import OutOfMemory

HUGE = (1 << 40, 1 << 62, (1 << 63) - 1)


def one() -> torch.Tensor:
    return torch.ones(1, device="tpu")


def image() -> torch.Tensor:
    return torch.ones(1, 3, 4, 4, device="tpu")


CALLS: dict[str, Callable[[int], torch.Tensor]] = {
    "empty": lambda n: torch.empty(n, device="tpu"),
    "zeros": lambda n: torch.zeros(n, n, device="tpu"),
    "new_full": lambda n: one().new_full((2, n), 1.0),
    "arange": lambda n: torch.arange(n, device="tpu"),
    "linspace": lambda n: torch.linspace(0, 1, n, device="tpu"),
    "eye": lambda n: torch.eye(n, device="tpu"),
    "rand": lambda n: torch.rand(n, device="tpu"),
    "resize_": lambda n: torch.ones(2, device="tpu").resize_(n),
    "repeat": lambda n: one().repeat(n),
    "expand, sum": lambda n: one().expand(n).sum(),
    "expand, add": lambda n: one().expand(n) + 1,
    "expand, cat": lambda n: torch.cat([one().expand(n)] * 2),
    "expand, matmul": lambda n: one().expand(n) @ one().expand(n),
    "as_strided": lambda n: one().as_strided((n,), (0,)).max(),
    "one_hot": lambda n: F.one_hot(torch.zeros(2, dtype=torch.int64, device="tpu"), n),
    "interpolate": lambda n: F.interpolate(image(), size=(n, 2)),
    "pad": lambda n: F.pad(image(), (n, 1)),
    "conv, padding": lambda n: F.conv2d(image(), torch.ones(2, 3, 2, 2, device="tpu"), padding=n),
    "conv, dilation": lambda n: F.conv2d(image(), torch.ones(2, 3, 2, 2, device="tpu"), dilation=n),
    "unfold": lambda n: F.unfold(image(), 2, padding=n),
    "bincount": lambda n: torch.bincount(torch.zeros(2, dtype=torch.int64, device="tpu"), minlength=n),
    "histc": lambda n: torch.histc(one(), bins=n),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_at_the_call(name: str) -> None:
    for size in HUGE:
        with pytest.raises((RuntimeError, ValueError)):
            CALLS[name](size)
    assert (one() + 1).tolist() == [2.0]


def test_bytes_that_overflow_are_rejected_with_the_cpus_message() -> None:
    for place in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match=r"Storage size calculation overflowed with sizes=\[\d+\]"):
            torch.empty(1 << 62, device=place)


def test_large_views_are_free_until_they_are_read_as_a_whole() -> None:
    view = one().expand(1 << 62)
    assert view.shape == (1 << 62,) and view[5:8].tolist() == [1.0] * 3
    assert torch.empty(0, 1 << 62, device="tpu").sum().item() == 0


def test_a_result_may_be_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEMORY, "limit", 1000)
    assert (torch.ones(400, device="tpu") + 1).shape == (400,)
    with pytest.raises(torch.OutOfMemoryError, match=r"can't allocate memory: float32\[1001\]"):
        out_of_memory.check_size(torch.float32, (1001,))


def test_an_array_between_the_ops_is_refused_before_xla_sees_it() -> None:
    with pytest.raises(TooLarge):
        tensor_type("f32", (LARGEST // 8, 3))
    tensor_type("f32", (0, LARGEST))


def test_a_run_takes_no_more_than_the_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEMORY, "available", lambda: 2.5 * LARGE)
    peak = MEMORY.peak
    try:
        MEMORY.note_execution(LARGE, LARGE, 0)
        with pytest.raises(OutOfMemory, match="are free"):
            MEMORY.note_execution(2 * LARGE, LARGE, 0)
    finally:
        MEMORY.peak = peak


def test_a_container_bounds_the_memory(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_GROUP", tmp_path)
    free = device.host_available()
    (tmp_path / "memory.max").write_text("max\n")
    assert abs(device.host_available() - free) < 1 << 30
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert (device.host_available(), device.host_total()) == (3000, 5000)
    lazytpu.sync()
