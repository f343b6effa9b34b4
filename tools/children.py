"""Cases in child processes with bounded memory and time: a case that dies or hangs is reported, and the others
continue.

A child is a command that takes numbers of cases. For each case it prints lines of JSON (`say`): `number`, `stage` and
further results. The last stage of a case is "done" or "nothing".
"""

from __future__ import annotations

import json
import math
import os
import queue
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

LAST_STAGES = ("done", "nothing")
CHUNK = 400  # cases per child
WALL_TIMES = 10  # processor times: a busy machine gives a child a tenth of a core


def answers(
    numbers: Sequence[int],
    command: Callable[[str], Sequence[str]],
    limit: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one answer for each case, from several children if necessary. `command` receives the numbers, separated by
    commas; a case may take `limit` seconds of processor time, and `WALL_TIMES` as much in all, for example on a busy
    machine. If a child ended, the answer has its last stage, and `end`."""
    remaining = list(numbers)
    while remaining:
        chunk, answers_of_child = remaining[:CHUNK], dict[int, dict[str, Any]]()
        child = subprocess.Popen(
            command(",".join(map(str, chunk))),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pass_on, args=(child, lines), daemon=True).start()
        end = "hangs"
        try:
            while (line := _next_line(lines, child, limit if answers_of_child else 4 * limit)) is not None:
                said = json.loads(line)
                answers_of_child.setdefault(said["number"], {}).update(said)
                if said["stage"] in LAST_STAGES:
                    yield answers_of_child[said["number"]]
            end = f"exit {child.wait()}"
        except queue.Empty:
            child.kill()
            child.wait()
        last = answers_of_child.get(max(answers_of_child, default=-1))
        if not answers_of_child:
            raise RuntimeError(f"a child said nothing ({end})")
        if last is not None and last["stage"] not in LAST_STAGES:
            yield {**last, "end": end}
        remaining = [n for n in remaining if n > max(answers_of_child)]


def _next_line(lines: queue.SimpleQueue[str | None], child: subprocess.Popen[str], limit: float) -> str | None:
    """Return the next line; raise `queue.Empty` if the child used up its processor time or wall time before."""
    used, deadline = _processor_time(child), time.monotonic() + WALL_TIMES * limit
    while True:
        try:
            return lines.get(timeout=limit)
        except queue.Empty:
            if time.monotonic() > deadline or _processor_time(child) - used > 0.9 * limit:
                raise


def _processor_time(child: subprocess.Popen[str]) -> float:
    """Return the seconds that a child has used; infinite where the system does not report them."""
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pass_on(child: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert child.stdout is not None
    with child.stdout as output:
        for line in output:
            if line.startswith("{"):
                lines.put(line)
    lines.put(None)


def say(**what: Any) -> None:
    """One line of a child's output."""
    print(json.dumps(what), flush=True)


def start_child(address_space: int) -> None:
    """Load the device, and bound the address space of this process, in bytes."""
    torch.set_num_threads(1)
    torch.ones(2, device="tpu").tolist()
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))


def alive(device: str) -> None:
    """Raise if the device does not work correctly any more."""
    import lazytpu

    lazytpu.sync()
    assert (torch.arange(5, device=device) + 1).tolist() == [1, 2, 3, 4, 5]
