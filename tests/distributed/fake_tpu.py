"""A simulated TPU: libtpu's client is replaced by a CPU client, and reports its arguments. `fake_tpu.py SCRIPT`."""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

from jax._src.lib import _jax, xla_client

from lazytpu.runtime.xla import jax_private

LOADED: list[str] = []
PROFILED: list[object] = []
LIBRARY = object()


def load(name: str, path: str) -> object:
    """Load libtpu, which reads its environment variables at this point. Return its interface."""
    LOADED.append(name)
    print("loaded", name, json.dumps({name_of: value for name_of, value in os.environ.items() if "TPU_" in name_of}))
    return LIBRARY


def make_client(name: str, options: Any, connection: Any) -> Any:
    """Return the client, which finds the other processes by libtpu's own variables."""
    assert LOADED == [name] == ["tpu"]
    assert PROFILED == [LIBRARY], "XLA's profiler traces the chip"
    processes = os.environ["TPU_PROCESS_ADDRESSES"].split(",")
    return xla_client.make_cpu_client(
        asynchronous=True,
        distributed_client=connection,
        node_id=int(os.environ["CLOUD_TPU_TASK_ID"]),
        num_nodes=len(processes),
        collectives=_jax.make_gloo_tcp_collectives(connection, "127.0.0.1", None),
    )


real = _jax.pjrt_plugin_loaded, _jax.pjrt_plugin_initialized
_jax.pjrt_plugin_loaded = jax_private.plugin_loaded = lambda name: name in LOADED or real[0](name)
_jax.pjrt_plugin_initialized = jax_private.plugin_initialized = lambda name: name in LOADED or real[1](name)
xla_client.load_pjrt_plugin_dynamically = jax_private.load_plugin = load
jax_private.register_profiler = PROFILED.append
xla_client.make_c_api_client = jax_private.make_plugin_client = make_client
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
