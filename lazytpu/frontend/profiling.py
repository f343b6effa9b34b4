"""The device in `torch.profiler`.

torch lets a backend add its events in C++ alone. So the device's events are merged into the results of a profiler with
`ProfilerActivity.TPU`: into `events()`, which `key_averages()` sums up, and into the file of `export_chrome_trace`.

- Each run of a program is an event of the device, and a kernel of the host's range `lazytpu::launch NAME`, in which it
  was launched. A TPU notes the runs itself, by XLA's profiler, and the ops in them, which are a row of the file.
- Waits are ranges of the host's thread (`lazytpu::wait EXPRESSION`).
- Compilations are ranges of a track of their own, since threads of lazytpu compile.
- The live memory of the device after each launch is a counter in the file, and with `profile_memory` the change is an
  event `[memory]`.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

from lazytpu.frontend import activation
from lazytpu.frontend.torch_private import PRIVATE_USE, FunctionEvent, Profile, host_range
from lazytpu.timeline import COMPILE, LAUNCH, TIMELINE, Collected, Run

DEVICE_TRACK, COMPILE_TRACK = 1 << 30, (1 << 30) + 1
"""Process numbers of the device and of the compilations in a trace file: greater than those of Linux."""


class Profiled:
    """What a profiler collected of the device, in nanoseconds of torch's clock, which is that of `time.time_ns()`."""

    def __init__(self) -> None:
        self.collected = Collected()
        self.session: Any = None  # of the device's own trace
        self._offset = time.time_ns() - time.perf_counter_ns()

    def nanoseconds(self, seconds: float) -> int:
        """Return a time of the timeline by torch's clock."""
        return round(1e9 * seconds) + self._offset


def install() -> None:
    """Let torch's profilers collect and show the device's events."""
    kind: Any = Profile
    kind._start_trace = _starting(kind._start_trace)
    kind.__exit__ = _stopping(kind.__exit__)
    kind._parse_kineto_results = _parsing(kind._parse_kineto_results)
    kind.export_chrome_trace = _exporting(kind.export_chrome_trace)


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _start_trace(self: Any) -> Any:
        if self.use_device == "tpu":
            self._on_tpu = profiled = Profiled()
            device = activation.started_device()
            if device is not None and device.platform() == "tpu":
                activation.engine().wait(activation.engine().launched())  # so that the trace has later runs alone
                profiled.session = device.begin_trace()
            profiled.collected.began = time.perf_counter()
            TIMELINE.host_range = host_range
            TIMELINE.collecting = profiled.collected
            TIMELINE.holds(time.perf_counter(), 0 if device is None else device.live_bytes())
        return original(self)

    return _start_trace


def _stopping(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __exit__(self: Any, *raised: object) -> Any:
        profiled: Profiled | None = getattr(self, "_on_tpu", None)
        try:
            return original(self, *raised)  # it synchronizes the device
        finally:
            if profiled is not None and TIMELINE.collecting is profiled.collected:
                device = activation.started_device()
                if device is not None:
                    activation.engine().settle_times()
                TIMELINE.collecting = None
                if device is not None and profiled.session is not None:
                    session, profiled.session = profiled.session, None
                    profiled.collected.traced = device.end_trace(session)

    return __exit__


def _parsing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _parse_kineto_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        events: list[Any] = original(self, result, *args, **kwargs)
        profiled: Profiled | None = getattr(self, "_on_tpu", None)
        if profiled is not None:
            events.extend(_function_events(profiled, events, result.trace_start_ns(), self.profile_memory))
            events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        return events

    return _parse_kineto_results


def _exporting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def export_chrome_trace(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, path, *args, **kwargs)
        profiled: Profiled | None = getattr(self, "_on_tpu", None)
        if profiled is not None:
            _add_to_file(os.fspath(path), profiled)
        return result

    return export_chrome_trace


def _function_events(profiled: Profiled, events: Sequence[Any], zero: int, with_memory: bool) -> Iterator[Any]:
    """Yield the events of the device, and add its kernels to the ranges among `events` that launched them. Times are
    relative to `zero` nanoseconds."""

    def microseconds(seconds: float) -> float:
        return (profiled.nanoseconds(seconds) - zero) / 1e3

    number = max((event.id for event in events), default=0)
    launches = _Launches([(e.name, e.time_range.start, e.time_range.end, e) for e in events])
    for run in profiled.collected.device_runs():
        number += 1
        start, end = microseconds(run.start), microseconds(run.end)
        launch = launches.of(run, microseconds)
        linked = 0
        if launch is not None:
            linked = launch.id
            launch.append_kernel(run.name, 0, end - start)
        yield _event(number, run.name, start, end, device_type=PRIVATE_USE, linked_correlation_id=linked)
    for compilation in profiled.collected.compilations:
        number += 1
        start, end = microseconds(compilation.start), microseconds(compilation.end)
        yield _event(number, COMPILE + compilation.name, start, end, thread=COMPILE_TRACK)
    memory = profiled.collected.memory if with_memory else []
    for (_, before), (at, live) in pairwise(memory):
        if live != before:
            number += 1
            moment = microseconds(at)
            yield _event(number, "[memory]", moment, moment, trace_name=None, device_memory_usage=live - before)


def _event(number: int, name: str, start: float, end: float, *, thread: int = DEVICE_TRACK, **more: Any) -> Any:
    fixed = {"use_device": "tpu", "trace_name": name, "input_shapes": [], "stack": []}
    return FunctionEvent(number, name, thread, start, end, **{**fixed, **more})


class _Launches:
    """The ranges of the host in which programs were launched: (name, start, end, range)."""

    def __init__(self, ranges: Sequence[tuple[str, float, float, Any]]) -> None:
        self._ranges: dict[str, list[tuple[float, float, Any]]] = {}
        for name, start, end, of in sorted(ranges, key=lambda entry: entry[1]):
            if name.startswith(LAUNCH):
                self._ranges.setdefault(name, []).append((start, end, of))

    def of(self, run: Run, microseconds: Callable[[float], float]) -> Any:
        """Return the range in which a run was launched, or None: threads that the profiler does not observe launch,
        too. `microseconds` converts a time of the timeline to one of the ranges."""
        if run.launched is None:
            return None
        ranges, launched = self._ranges.get(LAUNCH + run.name, []), microseconds(run.launched)
        index = bisect_right(ranges, launched, key=lambda entry: entry[0]) - 1
        return ranges[index][2] if index >= 0 and launched <= ranges[index][1] else None


def _add_to_file(path: str, profiled: Profiled) -> None:
    """Add the device's events to a trace file."""
    opened: Any = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt") as file:
        trace = json.load(file)
    events: list[dict[str, Any]] = trace["traceEvents"]
    events.extend(list(_trace_events(profiled, events, trace.get("baseTimeNanoseconds", 0))))
    with opened(path, "wt") as file:
        json.dump(trace, file)


def _trace_events(profiled: Profiled, events: Sequence[dict[str, Any]], zero: int) -> Iterator[dict[str, Any]]:
    """Yield the entries of a trace file; its times are microseconds since `zero` nanoseconds."""

    def microseconds(seconds: float) -> float:
        return (profiled.nanoseconds(seconds) - zero) / 1e3

    collected = profiled.collected
    ops = [] if collected.traced is None else collected.traced.ops
    rows = [(DEVICE_TRACK, "TPU 0", 0, "programs"), (COMPILE_TRACK, "lazytpu", 0, "compilations")]
    for track, name, row, title in (*rows, *([(DEVICE_TRACK, "TPU 0", 1, "ops")] if ops else [])):
        yield {"ph": "M", "name": "process_name", "pid": track, "tid": row, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_name", "pid": track, "tid": row, "args": {"name": title}}
    ranges = [e for e in events if e.get("ph") == "X" and str(e.get("name")).startswith(LAUNCH)]
    launches = _Launches([(e["name"], e["ts"], e["ts"] + e["dur"], e) for e in ranges])
    for number, run in enumerate(collected.device_runs(), 1):
        start = microseconds(run.start)
        event = {"cat": "kernel", "name": run.name, "pid": DEVICE_TRACK, "tid": 0, "ts": start}
        yield {"ph": "X", **event, "dur": microseconds(run.end) - start, "args": {"correlation": number}}
        launch = launches.of(run, microseconds)
        if launch is not None:
            flow = {"cat": "ac2g", "name": "ac2g", "id": number}
            yield {"ph": "s", **flow, "pid": launch["pid"], "tid": launch["tid"], "ts": launch["ts"]}
            yield {"ph": "f", "bp": "e", **flow, "pid": DEVICE_TRACK, "tid": 0, "ts": start}
    for op in ops:
        start = microseconds(op.start)
        event = {"cat": "op", "name": op.name, "pid": DEVICE_TRACK, "tid": 1, "ts": start, "args": op.about}
        yield {"ph": "X", **event, "dur": microseconds(op.end) - start}
    for compilation in collected.compilations:
        start = microseconds(compilation.start)
        event = {"cat": "compile", "name": COMPILE + compilation.name, "pid": COMPILE_TRACK, "tid": 0, "ts": start}
        yield {"ph": "X", **event, "dur": microseconds(compilation.end) - start}
    for at, live in collected.memory:
        counter = {"name": "device memory", "pid": DEVICE_TRACK, "tid": 0, "ts": microseconds(at)}
        yield {"ph": "C", **counter, "args": {"bytes": live}}
