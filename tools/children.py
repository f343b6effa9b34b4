"""Cases in child processes with bounded memory and time: one that dies or hangs is found, and the others go on.

A child is a command that is given numbers of cases. For each it prints lines of JSON (`say`): `number`, `stage` and
whatever else there is to say. The last stage of a case is "done" or "nothing".
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
CHUNK = 400  # cases of one child


def answers(
    numbers: Sequence[int],
    command: Callable[[str], Sequence[str]],
    limit: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """One answer for each case, from as many children as it takes. `command` gets the numbers, with commas; a case may
    take `limit` seconds. Where a child ended, the answer has its last stage, and `end`."""
    rest = list(numbers)
    while rest:
        chunk, known = rest[:CHUNK], dict[int, dict[str, Any]]()
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
            while (line := lines.get(timeout=limit if known else 4 * limit)) is not None:
                said = json.loads(line)
                known.setdefault(said["number"], {}).update(said)
                if said["stage"] in LAST_STAGES:
                    yield known[said["number"]]
            end = f"exit {child.wait()}"
        except queue.Empty:
            child.kill()
            child.wait()
        last = known.get(max(known, default=-1))
        if not known:
            raise RuntimeError(f"a child said nothing ({end})")
        if last is not None and last["stage"] not in LAST_STAGES:
            yield {**last, "end": end}
        rest = [n for n in rest if n > max(known)]


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
    """Raises when the device is not what it was."""
    import lazytpu

    lazytpu.sync()
    assert (torch.arange(5, device=device) + 1).tolist() == [1, 2, 3, 4, 5]
