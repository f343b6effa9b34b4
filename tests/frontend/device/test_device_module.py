"""`torch.tpu` and `torch.accelerator`."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

import lazytpu
import lazytpu.frontend.device.device_module as tpu
from lazytpu.engine.memory.alive import size


def test_device_module_is_torch_tpu() -> None:
    assert torch.get_device_module("tpu") is tpu is sys.modules["torch.tpu"]
    assert all(hasattr(tpu, name) for name in tpu.__all__)


def test_one_device() -> None:
    assert tpu.is_available()
    assert tpu.device_count() == 1
    assert tpu.current_device() == 0
    tpu.set_device("tpu:0")
    with tpu.device("tpu"), tpu.device(None), tpu.device(0), tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0
    for another in (1, "tpu:3", torch.device("tpu", 7)):
        with pytest.raises(RuntimeError, match="this process drives one device, tpu:0"):
            tpu.set_device(another)
    with pytest.raises(ValueError, match="Expected a tpu device, but got: cpu"):
        tpu.synchronize("cpu")


def test_queries_do_not_start_the_engine() -> None:
    code = """
import sys, torch, lazytpu
t = torch.tpu
assert t.is_available() and not t.is_initialized() and not t._is_in_bad_fork()
torch.manual_seed(3), t.get_rng_state(), t.synchronize(), t.current_stream().synchronize(), torch.Event("tpu").record()
assert (t.memory_allocated(), t.max_memory_allocated()) == (0, 0)
torch.accelerator.synchronize()
assert not t.is_initialized() and "jax" not in sys.modules
t.init()
assert t.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_properties() -> None:
    properties = tpu.get_device_properties("tpu:0")
    assert properties.platform in ("cpu", "tpu", "gpu")
    assert properties.name == tpu.get_device_name()
    assert properties.platform != "cpu" or properties.name == "TPU v6e (simulated on a CPU)"
    assert properties.total_memory > 2**20
    free, total = tpu.mem_get_info()
    assert 0 < free <= total == properties.total_memory
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_memory_is_counted() -> None:
    lazytpu.sync()
    gc.collect()
    before = tpu.memory_allocated()
    x = torch.ones(1 << 16).to("tpu")
    assert tpu.memory_allocated() == torch.accelerator.memory_allocated() == before + 4 * (1 << 16)
    tpu.reset_peak_memory_stats()
    y = (x + 1).sum().item()
    assert y == 2 * (1 << 16)
    assert tpu.max_memory_allocated() >= tpu.memory_allocated()
    stats = tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == tpu.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == tpu.max_memory_allocated() == tpu.max_memory_reserved()
    assert tpu.memory_summary().startswith(f"{size(tpu.memory_allocated())} on the device")
    del x
    assert tpu.memory_allocated() == before
    tpu.empty_cache()


def test_random_state() -> None:
    torch.manual_seed(3)
    assert tpu.initial_seed() == tpu.default_generators[0].initial_seed() == 3
    state = tpu.get_rng_state()
    a = torch.rand(4, device="tpu")
    tpu.set_rng_state(state, "tpu:0")
    assert torch.equal(a.cpu(), torch.rand(4, device="tpu").cpu())
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        tpu.manual_seed_all(9)
        torch.rand(2, device="tpu")
    assert torch.equal(tpu.get_rng_state_all()[0], tpu.default_generators[0].get_state())
    assert tpu.initial_seed() == 3
    tpu.seed_all()
    assert tpu.initial_seed() != 3


def test_precision() -> None:
    assert tpu.is_bf16_supported()
    assert torch.bfloat16 in tpu.get_amp_supported_dtype()


def test_accelerator() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("tpu")
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    with pytest.raises(RuntimeError, match="one device"):
        accelerator.set_device_index(2)
    accelerator.synchronize()
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    assert accelerator.get_memory_info()[1] > 0
    assert accelerator.memory_stats()
    assert accelerator.current_stream() is tpu.current_stream()


def test_every_function_of_torch_accelerator_answers() -> None:
    accelerator = torch.accelerator
    current = accelerator.current_accelerator()
    assert current is not None and current.type == "tpu"
    for name in ("current_device_index", "memory_allocated", "max_memory_allocated", "memory_reserved"):
        assert getattr(accelerator, name)() >= 0
    for name in ("synchronize", "empty_cache", "empty_host_cache", "reset_peak_memory_stats", "memory_stats"):
        getattr(accelerator, name)()
    accelerator.set_device_index("tpu:0")
    accelerator.set_stream(accelerator.current_stream())
    with accelerator.device_index(0):
        assert torch.ones(1, device=accelerator.current_device_index()).device.type == "tpu"
    free, total = accelerator.get_memory_info()
    assert 0 <= free <= total
    assert torch.float64 in accelerator.get_device_capability()["supported_dtypes"]


def test_data_parallel_over_one_device() -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(3, 2).to("tpu"))
    y = model(torch.ones(4, 3))
    assert y.device.type == "tpu"
    y.sum().backward()
    assert model.module.weight.grad.tolist() == [[4.0] * 3] * 2


def test_capability_equals_the_accelerators() -> None:
    capability = tpu.get_device_capability("tpu:0")
    assert capability == torch.accelerator.get_device_capability()
    for dtype in capability["supported_dtypes"]:
        assert torch.ones(2, dtype=dtype, device="tpu").to(torch.complex64).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="one device"):
        tpu.get_device_capability(1)


def test_capability_of_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lazytpu.runtime.xla.client.platform", lambda: "tpu")
    assert torch.complex128 not in tpu.get_device_capability()["supported_dtypes"]


def test_utilization_is_a_percentage() -> None:
    (torch.ones(300, 300, device="tpu") @ torch.ones(300, 300, device="tpu")).cpu()
    assert 0 <= tpu.utilization() <= 100
    with pytest.raises(RuntimeError, match="one device"):
        tpu.utilization(2)


MIB = 1 << 20


def test_no_more_than_a_fraction_of_the_memory_is_taken() -> None:
    allocated = torch.ones(MIB, device="tpu")
    lazytpu.sync()
    torch.zeros(64 * MIB, dtype=torch.uint8).to("tpu")  # the peak so far is no limit
    tpu.set_per_process_memory_fraction((tpu.memory_allocated() + 8 * MIB) / tpu.mem_get_info()[1])
    try:
        with pytest.raises(torch.OutOfMemoryError, match="data from the host"):
            torch.zeros(4 * MIB).to("tpu")
        with pytest.raises(torch.OutOfMemoryError, match="too small to run"):
            (torch.ones(4 * MIB, device="tpu") + allocated.sum()).cpu()
        assert (allocated + 1).sum().item() == 2 * MIB, "what fits still runs"
        assert tpu.get_per_process_memory_fraction() < 0.5
    finally:
        tpu.set_per_process_memory_fraction(1.0)
    assert torch.zeros(4 * MIB).to("tpu").sum().item() == 0
    assert tpu.get_per_process_memory_fraction() == 1.0


@pytest.mark.parametrize(
    ("fraction", "error"), [(1, TypeError), ("0.5", TypeError), (1.5, ValueError), (-0.1, ValueError)]
)
def test_not_a_fraction(fraction: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"must be `float`|Allowed range: 0~1"):
        tpu.set_per_process_memory_fraction(fraction)  # pyright: ignore[reportArgumentType]
