"""Start of a job: its helper process, and the agreement of the ranks on a job."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

HELPER = """
import importlib, sys, types
for name, folder in (("lazytpu", sys.argv[1]), ("lazytpu.distributed", f"{sys.argv[1]}/distributed")):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
importlib.import_module(f"lazytpu.distributed.{sys.argv[2]}").run(*sys.argv[3:])
"""
"""The program of the helper process and of relays: their module in empty packages, since `__init__` of lazytpu imports
torch."""
DIRECT = 512  # a larger job has relays
FAN_IN = 64  # connections of a relay


def own_address(master: str) -> str:
    """Return the address of this machine on the route to the machine `master`; the loopback address if it is the same
    machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def start_helper(host: str, size: int) -> dict[str, Any]:
    """Start the helper for `size` ranks, and return its addresses and token."""
    token = secrets.token_hex(16)
    address = _started("helper", token, host, str(size))
    return {"host": host, "token": token, **address, "control": (host, address["control"])}


def _started(module: str, token: str, *arguments: str) -> dict[str, Any]:
    """Start a process of the control plane, and return its addresses.

    It runs in its own session, so that a signal to all ranks of this machine does not end it first.
    """
    helper = subprocess.Popen(
        [sys.executable, "-P", "-c", HELPER, str(Path(__file__).parents[1]), module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert helper.stdin is not None and helper.stdout is not None
    helper.stdin.write(token + "\n")
    helper.stdin.close()
    line = helper.stdout.readline()
    if not line:
        raise RuntimeError(f"the {module} process of the job ended with status {helper.wait()}; its error is above")
    helper.returncode = 0  # avoids Popen's warning: the helper outlives this process
    return json.loads(line)


def _comes(store: Any, keys: list[str], seconds: float) -> bool:
    """Return whether other ranks set these keys of a store within some seconds."""
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError:  # of which class depends on the store
        return False
    return True


def _through_relays(
    store: Any, key: str, rank: int, size: int, address: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Return the addresses of a new job for a rank: where `size` needs it, its control plane is behind relays, each of
    which the first of its ranks starts. Those of the top level have at most FAN_IN times as many ranks. A relay that
    does not come within `seconds` is left out, so that the helper knows which rank is missing."""
    end = time.monotonic() + seconds
    parent, names = address["control"], list[str]()
    span = FAN_IN
    while span * FAN_IN < size:
        span *= FAN_IN
    while span >= FAN_IN and size > DIRECT:
        first = rank // span * span
        place, name = f"{key}/relay/{span}/{first}", f"ranks {first} to {min(first + span, size) - 1}"
        if rank == first:
            host = own_address(parent[0])
            relay = _started("relays", address["token"], host, name, parent[0], str(parent[1]))
            store.set(place, json.dumps((host, relay["control"])))
        if rank == first or _comes(store, [place], max(0.01, end - time.monotonic())):
            parent = json.loads(store.get(place))
            names.append(name)
        span //= FAN_IN
    return {**address, "control": parent, "relays": names}


def meeting(store: Any, key: str, rank: int, size: int, current: str, seconds: float) -> dict[str, Any]:
    """Return the addresses and token of the ranks' next job, which they agree on through torch's `store`, under `key`.

    It is the current job, of which only the token is returned, if all ranks have the same `current` token; it is ""
    where they have no working one. Otherwise rank 0 starts a new job.

    Raises RuntimeError if rank 0 does not come within `seconds`. The helper of a new job notices other missing ranks.
    """
    peers = [f"{key}/in/{peer}" for peer in range(1, size)]
    if rank != 0:
        store.set(f"{key}/in/{rank}", current)
    elif current and _comes(store, peers, seconds / 2) and all(store.get(peer).decode() == current for peer in peers):
        store.set(key, json.dumps({"token": current}))
    else:
        store.set(key, json.dumps(start_helper(own_address(os.environ.get("MASTER_ADDR", "localhost")), size)))
    if rank != 0 and not _comes(store, [key], seconds):
        raise RuntimeError(
            f"rank {rank} waited {seconds:g} s for rank 0, which starts the job and has not come to init_process_group"
        )
    address = json.loads(store.get(key))
    return _through_relays(store, key, rank, size, address, seconds / 2) if "control" in address else address
