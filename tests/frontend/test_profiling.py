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
from jax.profiler import ProfileData
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

import lazytpu
from lazytpu.frontend import activation
from lazytpu.runtime.xla import client, tracing
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


def chip_profile(began: int, runs: list[tuple[str, int, int]], ops: list[tuple[str, int, int]]) -> ProfileData:
    """An xspace as libtpu fills it. `began` is in nanoseconds of `time.time_ns()`, the rest in nanoseconds after it."""
    names = sorted({name for name, _, _ in (*runs, *ops)})
    lines = "".join(
        f'lines {{ id: {number} name: "{line}" timestamp_ns: 0 '
        + "".join(
            f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {1000 * at} duration_ps: {1000 * taken} "
            f'stats {{ metadata_id: 1 str_value: "convolution" }} }} '
            for name, at, taken in events
        )
        + "} "
        for number, (line, events) in enumerate((("Steps", []), ("XLA Modules", runs), ("XLA Ops", ops)), 1)
    )
    metadata = "".join(
        f"event_metadata {{ key: {number} value {{ id: {number} name: {json.dumps(name)} }} }} "
        for number, name in enumerate(names, 1)
    )
    return ProfileData.from_text_proto(
        'planes { name: "/host:CPU" } planes { name: "/device:TPU:1" } '
        f'planes {{ name: "/device:TPU:0" {lines} {metadata} '
        'stat_metadata { key: 1 value { id: 1 name: "hlo_category" } } } '
        f'planes {{ name: "Task Environment" stats {{ metadata_id: 1 uint64_value: {began} }} '
        'stat_metadata { key: 1 value { id: 1 name: "profile_start_time" } } }'
    )


class Chip:
    """A device that traces itself: each run takes 7 us, in this order of names."""

    def __init__(self, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = names
        device = activation.started_device()
        assert device is not None
        monkeypatch.setattr(type(device), "platform", lambda _: "tpu")
        monkeypatch.setattr(tracing, "begin_trace", time.time_ns)
        monkeypatch.setattr(tracing, "end_trace", self.end)

    def end(self, began: int) -> Any:
        runs = [(f"{name}(18)", 10_000 * at, 7_000) for at, name in enumerate(self.names)]
        return tracing.read_trace(chip_profile(began, runs, [("%fusion.3 = bf16[8]{0} fusion(%p)", 1000, 3_000)]))


def test_runs_have_the_times_of_the_chip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step = training()
    Chip(["profiled_step"] * 3, monkeypatch)
    with profile(activities=[CPU, TPU]) as profiler:
        begun = time.time_ns()
        for _ in range(3):
            step()
    runs = runs_of(profiler)
    assert [(run.name, round(run.device_time_total, 1)) for run in runs] == [("profiled_step", 7.0)] * 3
    launches = [event for event in profiler.events() if event.name == "lazytpu::launch profiled_step"]
    assert [run.linked_correlation_id for run in runs] == [launch.id for launch in launches]
    assert [round(launch.kernels[0].duration, 1) for launch in launches] == [7.0] * 3
    path = tmp_path / "trace.json"
    events = trace_of(profiler, path)
    (op,) = [event for event in events if event.get("cat") == "op"]
    assert (op["name"], round(op["dur"], 1), op["args"]) == ("fusion.3", 3.0, {"hlo_category": "convolution"})
    zero = json.loads(path.read_text())["baseTimeNanoseconds"]
    assert abs(zero + 1e3 * op["ts"] - begun) < 60e9, "one clock"
    named = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == op["pid"]]
    assert named == ["programs", "ops"]


def test_a_run_of_the_chip_without_a_launch_has_no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    step = training()
    Chip(["profiled_step", "part_0", "profiled_step", "other", "other"], monkeypatch)
    with profile(activities=[CPU, TPU]) as profiler:
        step()
        step()
    linked = [(run.name, run.linked_correlation_id > 0) for run in runs_of(profiler)]
    expected = [("profiled_step", True), ("part_0", False), ("profiled_step", True), ("other", False), ("other", False)]
    assert linked == expected


def test_names_that_ran_more_often_than_launched_have_no_arrows(monkeypatch: pytest.MonkeyPatch) -> None:
    step = training()
    Chip(["profiled_step"] * 3, monkeypatch)
    with profile(activities=[CPU, TPU]) as profiler:
        step()
    assert [run.linked_correlation_id for run in runs_of(profiler)] == [0, 0, 0]


def test_trace_that_another_profiler_holds_leaves_the_times_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    step = training()
    monkeypatch.setattr(client, "platform", lambda: "tpu")
    other = tracing.begin_trace()
    with (
        pytest.warns(UserWarning, match="Another profiling session active.*Use one profiler at a time"),
        profile(activities=[CPU, TPU]) as profiler,
    ):
        step()
    assert [run.name for run in runs_of(profiler)] == ["profiled_step"]
    with pytest.warns(UserWarning, match="no runs of a TPU"):
        assert tracing.end_trace(other) is None
