"""The TPU slice that this machine belongs to: how many machines it has, and how its chips lie.

On Google Kubernetes Engine environment variables say so, on Compute Engine a metadata server does, which libtpu asks
too. Names and formats are those that pytorch/xla reads (`get_tpu_env`, `get_worker_ips`):
https://github.com/pytorch/xla/blob/master/torch_xla/_internal/tpu.py
"""

from __future__ import annotations

import http.client
import os
import re
from dataclasses import dataclass

PATIENCE = 3.0  # seconds; the server is on the machine itself


@dataclass(frozen=True, slots=True)
class Slice:
    """Of so many machines; `chips` is its shape along x, y and z in chips, None if nothing says it."""

    hosts: int
    chips: tuple[int, ...] | None


def here() -> Slice:
    """The slice of this machine; of one machine where nothing says otherwise."""
    names = os.environ.get("TPU_WORKER_HOSTNAMES")
    bounds = [os.environ.get(name, "") for name in ("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")]
    # jax sets TPU_SKIP_MDS_QUERY where it sees no chip, so nobody is asked on other machines.
    if names is None and not os.environ.get("TPU_SKIP_MDS_QUERY"):
        names = _metadata("worker-network-endpoints")
        said = _metadata("tpu-env")
        bounds = [_entry(said, name) for name in ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS")]
    return Slice(len(names.split(",")) if names else 1, _product(*map(_shape, bounds)))


def _metadata(attribute: str) -> str:
    """An attribute of this machine; empty where no server has it."""
    server = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")  # the variable that jax reads, too
    connection = http.client.HTTPConnection(server, timeout=PATIENCE)
    try:
        path = f"/computeMetadata/v1/instance/attributes/{attribute}"
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else ""
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return ""
    finally:
        connection.close()


def _entry(said: str, name: str) -> str:
    """The value of one line of `tpu-env`, such as TPU_PROCESS_BOUNDS: '2,2,1'."""
    found = re.search(rf"^{name}:\s*'?([\d,]+)'?\s*$", said, re.MULTILINE)
    return found[1] if found else ""


def _shape(text: str) -> tuple[int, ...] | None:
    parts = text.split(",")
    return tuple(map(int, parts)) if len(parts) == 3 and all(part.isdecimal() for part in parts) else None


def _product(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if one is None or other is None else tuple(a * b for a, b in zip(one, other, strict=True))
