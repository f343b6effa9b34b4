"""torch.profiler shows the device: runs, launches, waits, compilations and memory."""

from __future__ import annotations

import gc
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

import lazytpu
from lazytpu.timeline import TIMELINE, Run
from tests.timing import measured

CPU, TPU = ProfilerActivity.CPU, ProfilerActivity.PrivateUse1


def training(width: int = 64) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.ones(2 * width, width).to("tpu")

    def profiled_step() -> torch.Tensor:
        with record_function("whole step"):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    for _ in range(3):
        profiled_step()
    lazytpu.sync()
    return profiled_step


def runs_of(profiler: Any) -> list[Any]:
    return [event for event in profiler.events() if event.device_type == DeviceType.PrivateUse1]


def test_runs_are_events_of_the_device_and_kernels_of_their_launches() -> None:
    step = training()
    with profile(activities=[CPU, TPU]) as profiler:
        for _ in range(4):
            step()
    runs = runs_of(profiler)
    assert [run.name for run in runs] == ["profiled_step"] * 4
    launches = {event.id: event for event in profiler.events() if event.name == "lazytpu::launch profiled_step"}
    assert {run.linked_correlation_id for run in runs} == launches.keys()
    for run in runs:
        launch = launches[run.linked_correlation_id]
        assert launch.time_range.start <= run.time_range.start <= run.time_range.end
        assert [kernel.name for kernel in launch.kernels] == ["profiled_step"]
    starts = [run.time_range.start for run in runs]
    assert starts == sorted(starts)
    averages = {(a.key, a.device_type): a for a in profiler.key_averages()}
    average = averages["profiled_step", runs[0].device_type]
    assert average.count == 4
    assert average.self_device_time_total == pytest.approx(sum(run.device_time_total for run in runs))
    assert "Self TPU" in profiler.key_averages().table(sort_by="self_device_time_total")


def test_run_that_was_launched_before_is_no_event() -> None:
    """Also if its end becomes known only now."""
    with profile(activities=[CPU, TPU]) as profiler:
        TIMELINE.ran(Run("earlier", time.perf_counter() - 1, time.perf_counter() - 1, time.perf_counter()))
        training()()
    assert "earlier" not in [event.name for event in profiler.events()]


def test_ranges_have_the_device_time_of_the_launches_in_them() -> None:
    step = training()
    with profile(activities=[CPU, TPU]) as profiler, record_function("all"):
        step()
        lazytpu.sync()
    (whole,) = [event for event in profiler.events() if event.name == "all" and event.device_type == DeviceType.CPU]
    assert whole.device_time_total == pytest.approx(sum(run.device_time_total for run in runs_of(profiler)))
    assert whole.device_time_total > 0


def test_waits_and_compilations_are_ranges() -> None:
    step = training()
    with profile(activities=[CPU, TPU]) as profiler:
        step().item()
        (torch.ones(7, 3).to("tpu").cumsum(0).sinh() @ torch.ones(3, 5).to("tpu")).tolist()
    names = [event.name for event in profiler.events()]
    assert "lazytpu::wait step().item()" in names
    compilations = [event for event in profiler.events() if event.name.startswith("lazytpu::compile ")]
    assert compilations and all(event.time_range.elapsed_us() > 1000 for event in compilations)


def test_memory_events_sum_to_the_growth() -> None:
    step = training()
    gc.collect()
    with profile(activities=[CPU, TPU], profile_memory=True) as profiler:
        kept = [torch.ones(1000).to("tpu") * i for i in range(2, 5)]
        lazytpu.mark_step()
        step()
    grown = sum(event.device_memory_usage for event in profiler.events() if event.name == "[memory]")
    assert grown == 12_000
    del kept


def trace_of(profiler: Any, path: Path) -> list[dict[str, Any]]:
    profiler.export_chrome_trace(str(path))
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_trace_file_has_a_track_of_the_device_with_arrows_from_the_launches(name: str, tmp_path: Path) -> None:
    step = training()
    with profile(activities=[CPU, TPU]) as profiler:
        for _ in range(3):
            step()
    events = trace_of(profiler, tmp_path / name)
    (track,) = [e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "TPU 0"]
    runs = [e for e in events if e.get("ph") == "X" and e["pid"] == track]
    assert [run["name"] for run in runs] == ["profiled_step"] * 3
    for run in runs:
        ends = {e["ph"]: e for e in events if e.get("cat") == "ac2g" and e["id"] == run["args"]["correlation"]}
        assert (ends["f"]["pid"], ends["f"]["ts"]) == (track, run["ts"])
        launch = [e for e in events if e["name"].startswith("lazytpu::launch") and e["ts"] == ends["s"]["ts"]]
        assert launch and launch[0]["tid"] == ends["s"]["tid"]
    assert [e["args"]["bytes"] for e in events if e["name"] == "device memory"][-1] > 0
    wholes = [e for e in events if e["name"] == "whole step" and e["ph"] == "X"]
    assert all(abs(whole["ts"] - runs[0]["ts"]) < 60e6 for whole in wholes), "one clock"


def test_device_rows_cover_the_time_of_the_steps() -> None:
    step = training(768)

    def measure() -> None:
        with profile(activities=[CPU, TPU]) as profiler:
            begun = time.perf_counter()
            for _ in range(5):
                loss = step()
            loss.item()
            wall = time.perf_counter() - begun
        busy = 1e-6 * sum(run.device_time_total for run in runs_of(profiler))
        assert 0.9 * wall < busy <= wall

    measured(measure)


def test_profiler_of_the_host_alone_collects_nothing() -> None:
    step = training()
    with profile(activities=[CPU]) as profiler:
        step()
        lazytpu.sync()
        assert TIMELINE.collecting is None
    assert runs_of(profiler) == []
    assert not any(event.name.startswith("lazytpu::") for event in profiler.events())


def test_exception_in_the_block_ends_the_collection() -> None:
    profiler = profile(activities=[CPU, TPU])
    profiler.__enter__()
    assert TIMELINE.collecting is not None
    profiler.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert TIMELINE.collecting is None


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
def test_schedule_shows_its_last_cycle() -> None:
    step = training()
    seen: list[int] = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=[CPU, TPU], schedule=schedule, on_trace_ready=lambda p: seen.append(len(runs_of(p)))) as p:
        for _ in range(8):
            step()
            lazytpu.sync()
            p.step()
    assert seen == [2, 2]
