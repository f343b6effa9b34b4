"""The numbers of a topology's devices, against libtpu's own list."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lazytpu.runtime.tpu.coordinates import coordinates
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.tpu.tpu_compiler import ALONE

NAMES = ["v5e:2x2", "v6e:4x8", "v5e:16x16", "v5p:2x2x1", "v5p:4x4x8", "tpu7x:2x2x2", "v5e:4x4*2"]
SCRIPT = """
import json, sys
from jax.experimental import topologies
for text in sys.argv[1:]:
    name, _, slices = text.partition("*")
    chosen = {"num_slices": int(slices)} if slices else {}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **chosen).devices
    print(json.dumps([[getattr(d, "slice_index", None) or 0, *d.coords, d.core_on_chip] for d in devices]))
"""


@pytest.fixture(scope="module")
def listed() -> dict[str, list[list[int]]]:
    """Return slice, coordinates and core of each device, in libtpu's order."""
    environment = {**os.environ, **ALONE}
    printed = subprocess.run(
        [sys.executable, "-c", SCRIPT, *NAMES], env=environment, check=True, capture_output=True, text=True
    ).stdout
    return dict(zip(NAMES, map(json.loads, printed.splitlines()[-len(NAMES) :]), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_devices_are_numbered_as_libtpu_lists_them(name: str, listed: dict[str, list[list[int]]]):
    topology = Topology.parse(name)
    places = [coordinates(topology, device) for device in range(topology.devices)]
    ours = [[p["slice"], p["x"], p["y"], p.get("z", 0), p["core"]] for p in places]
    assert ours == listed[name]
