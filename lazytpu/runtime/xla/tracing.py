"""The runs and ops of a TPU by XLA's own profiler, which libtpu feeds with the times of the chip itself.

The profile is an "xspace" (openxla/xla, `xla/tsl/profiler/protobuf/xplane.proto`) with a plane for each chip. Its line
"XLA Modules" has the runs of programs, each named `NAME(ID)`, and "XLA Ops" the ops in them. Times are nanoseconds
since the profile began, which the plane "Task Environment" has by the clock of `time.time_ns()`.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

from lazytpu.runtime.xla import client
from lazytpu.runtime.xla import jax_private as private
from lazytpu.timeline import Span, Traced


def begin_trace() -> Any:
    """Begin a trace of the device, to be passed to `end_trace`. None where it is no TPU: XLA's profiles of other
    platforms have no runs of programs."""
    if client.platform() != "tpu":
        return None
    chosen = private.ProfileOptions()
    chosen.host_tracer_level = chosen.python_tracer_level = 0
    return private.ProfilerSession(chosen)


def end_trace(session: Any) -> Traced | None:
    """End a trace that `begin_trace` returned. Return it; None, with a warning, if another profiler of XLA held the
    device, or if the profile shows no chip."""
    try:
        profile = session.stop_and_get_profile_data()
    except client.XlaError as error:
        reason = f"XLA's profiler refused the trace ({str(error).splitlines()[0]})"
    else:
        traced = read_trace(profile)
        if traced is not None:
            return traced
        reason = "XLA's profile has no runs of a TPU"
    advice = "the device's times are those that the host saw, and there are no ops. Use one profiler at a time"
    warnings.warn(f"{reason}: {advice}.", stacklevel=2)
    return None


def read_trace(profile: Any) -> Traced | None:
    """Return the runs and ops of the first chip that ran a program in a `jax.profiler.ProfileData`; None if there is
    none."""
    with warnings.catch_warnings():
        # Python warns of types in jaxlib 0.12 when they are first used, and as an exception that would end the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        planes = {plane.name: plane for plane in profile.planes}
        environment = planes.get("Task Environment")
        zero = None if environment is None else dict(environment.stats).get("profile_start_time")
        for name in sorted(planes, key=lambda name: (len(name), name)):
            lines = {line.name: line for line in planes[name].lines} if name.startswith("/device:TPU:") else {}
            if zero is not None and "XLA Modules" in lines:
                offset = zero - (time.time_ns() - time.perf_counter_ns())
                runs = list(_spans(lines["XLA Modules"], offset))
                return Traced(runs, list(_spans(lines["XLA Ops"], offset)) if "XLA Ops" in lines else [])
    return None


def _spans(line: Any, offset: int) -> Iterator[Span]:
    """Yield the events of a line. Its times plus `offset` are nanoseconds of `time.perf_counter_ns()`."""
    for event in line.events:
        # The name of an op is its HLO text, and the name of a run ends in the program's number.
        name = re.sub(r"\(\d+\)$", "", event.name.partition(" = ")[0].lstrip("%"))
        start = 1e-9 * (event.start_ns + offset)
        about = {key: value for key, value in event.stats if isinstance(value, (str, int, float))}
        yield Span(name, start, start + 1e-9 * event.duration_ns, about)
