"""Cases in child processes with bounded memory and time: a case that dies or hangs is reported, and the others
continue.

A child is a command that takes numbers of cases. For each case it prints lines of JSON (`say`): `number`, `stage` and
further results. The last stage of a case is "done" or "nothing".
"""

from __future__ import annotations

import json
import os
import queue
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

LAST_STAGES = ("done", "nothing")
CHUNK = 400  # cases per child


def answers(
    numbers: Sequence[int],
    command: Callable[[str], Sequence[str]],
    limit: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one answer for each case, from several children if necessary. `command` receives the numbers, separated by
    commas; a case may take `limit` seconds. If a child ended, the answer has its last stage, and `end`."""
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
            while (line := lines.get(timeout=limit if answers_of_child else 4 * limit)) is not None:
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
