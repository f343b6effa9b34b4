"""The TPU slice of this machine: its number of machines, and the arrangement of its chips.

On Google Kubernetes Engine, environment variables give them. On Compute Engine it is a metadata server, which libtpu
uses as well. Names and formats are those that pytorch/xla reads (`get_tpu_env`, `get_worker_ips`):
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
    """A slice of `hosts` machines; `chips` is its shape along x, y and z in chips, None if unknown."""

    hosts: int
    chips: tuple[int, ...] | None


def here() -> Slice:
    """Return the slice of this machine; by default, it is a slice of one machine."""
    names = os.environ.get("TPU_WORKER_HOSTNAMES")
    bounds = [os.environ.get(name, "") for name in ("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")]
    # jax sets TPU_SKIP_MDS_QUERY where it sees no chip, so other machines send no query.
    if names is None and not os.environ.get("TPU_SKIP_MDS_QUERY"):
        names = _metadata("worker-network-endpoints")
        attributes = _metadata("tpu-env")
        bounds = [_entry(attributes, name) for name in ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS")]
    return Slice(len(names.split(",")) if names else 1, _product(*map(_shape, bounds)))


def _metadata(attribute: str) -> str:
    """Return an attribute of this machine; empty if no server has it."""
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


def _entry(attributes: str, name: str) -> str:
    """Return the value of one line of `tpu-env`, such as TPU_PROCESS_BOUNDS: '2,2,1'."""
    match = re.search(rf"^{name}:\s*'?([\d,]+)'?\s*$", attributes, re.MULTILINE)
    return match[1] if match else ""


def _shape(text: str) -> tuple[int, ...] | None:
    extents = text.split(",")
    return tuple(map(int, extents)) if len(extents) == 3 and all(extent.isdecimal() for extent in extents) else None


def _product(hosts: tuple[int, ...] | None, chips: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if hosts is None or chips is None else tuple(a * b for a, b in zip(hosts, chips, strict=True))
