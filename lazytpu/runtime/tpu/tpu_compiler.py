"""Programs compiled for a TPU that this machine does not have, for inspection: `compile_for_tpu`.

libtpu compiles in a separate process, because it may abort or hang, and takes a gigabyte of memory. Results are kept in
the cache on disk under a digest of all inputs, source lines included.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from lazytpu.runtime.cache.fingerprint import flags, library
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.children import search_path
from lazytpu.runtime.errors import CompileError, PlatformError
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.tpu.tpu_child import ANSWER, MODULE, REQUEST
from lazytpu.runtime.xla.analysis import Memory
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.module_options import replicas_of

CHILD = Path(__file__).with_name("tpu_child.py")
PARTITIONS = "mhlo.num_partitions"
KIND = "tpu"
VERSION = 3  # of the stored answer; part of the key
LIMIT = 1800.0
"""The time limit of a compilation in seconds. A large step takes minutes."""

# Do not look for a TPU, here or at Google's metadata server. Other processes may have libtpu loaded.
ALONE = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "2",
}


def installed() -> bool:
    """Whether libtpu, the compiler, is installed."""
    return os.path.isfile(os.environ.get("TPU_LIBRARY_PATH", "")) or importlib.util.find_spec("libtpu") is not None


@dataclass(frozen=True, slots=True)
class TpuProgram:
    """The TPU compiler's output for a module.

    `proto` is an HloProto of the scheduled module after code generation, with estimated cycles in the ops'
    backend_config. `buffers` is the compiler's own list of allocations and their values. `seconds` is the compile time,
    also for a `cached` program. `devices` is the number of devices that it runs on at once.
    """

    topology: Topology
    proto: bytes
    memory: Memory
    buffers: str
    seconds: float
    cached: bool = False
    devices: int = 1


def compile_for_tpu(
    stablehlo: str | bytes,
    topology: str,
    *,
    partitions: int | None = None,
    options: Mapping[str, bool | int | str] | None = None,
    name: str = "program",
    limit: float = LIMIT,
) -> TpuProgram:
    """Compile a StableHLO module (text or bytecode, with a public `@main`) for a topology, in a separate process with
    `limit` seconds. The number of devices comes from the module (`mhlo.num_partitions`, `mhlo.num_replicas`) or from
    `partitions`. `options` are options of XLA and libtpu by name, such as `{"xla_tpu_enable_latency_hiding_scheduler":
    True}`. The options on the module, XLA_FLAGS and LIBTPU_INIT_ARGS apply as well.

    Raises:
        ValueError: `topology` is invalid, or has fewer devices.
        PlatformError: libtpu is not installed, or does not know the topology.
        CompileError: the compiler refused the module `name`, died, or took too long.
    """
    wanted = Topology.parse(topology)
    module_partitions, replicas = _devices_of(stablehlo, name)
    partitions = module_partitions if partitions is None else partitions
    devices = partitions * replicas
    if not 1 <= devices <= wanted.devices:
        raise ValueError(f"{name} is for {devices} devices, and {topology} has {wanted.devices}")
    target = wanted.smallest if devices == 1 else wanted
    module = stablehlo.encode() if isinstance(stablehlo, str) else stablehlo
    request: dict[str, Any] = {"topology": str(target), "partitions": partitions, "options": dict(options or {})}
    key = _key(module, request)
    stored = _kept(key, wanted, devices)
    if stored is not None:
        return stored
    with store().locked(KIND, key):
        stored = _kept(key, wanted, devices) if store().has(KIND, key) else None  # from the process that had the lock
        if stored is not None:
            return stored
        answer = _compiled(module, {**request, "name": name}, limit)
        payload = zlib.compress(json.dumps(answer).encode(), 6)
        store().put(KIND, key, payload, {"name": f"{name} for {target}"})
        return _program(answer, wanted, devices, cached=False)


def _devices_of(module: str | bytes, name: str) -> tuple[int, int]:
    """Return (partitions, replicas) of a module, 1 where it has no such attribute."""
    with mlir_context():
        try:
            parsed = ir.Module.parse(module)
        except ir.MLIRError as error:
            raise CompileError(name, str(error)) from error
        attributes = parsed.operation.attributes
        partitions = ir.IntegerAttr(attributes[PARTITIONS]).value if PARTITIONS in attributes else 1
        return partitions, replicas_of(parsed)


def _key(module: bytes, request: Mapping[str, Any]) -> str:
    """Return the digest of all inputs. Raises PlatformError without libtpu."""
    parts = {
        **request,
        "version": VERSION,
        "libtpu": libtpu(),
        "jaxlib": metadata.version("jaxlib"),
        "flags": [flags("XLA_FLAGS"), flags("LIBTPU_INIT_ARGS")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode() + b"\n" + module).hexdigest()


def libtpu() -> str:
    """Return the identity of the libtpu in use: the version of the installed one. A library of TPU_LIBRARY_PATH has
    precedence, as in jax.

    Raises PlatformError when there is none.
    """
    path, spec = os.environ.get("TPU_LIBRARY_PATH", ""), importlib.util.find_spec("libtpu")
    # jax sets the variable to the installed one
    package_folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if os.path.isfile(path) and os.path.dirname(path) not in package_folders:
        return library(path)
    if spec is None:
        raise PlatformError(
            "compiling for a TPU takes libtpu, Google's compiler and runtime, which is not installed here: "
            "pip install 'lazytpu[tpu]' (200 MB; no TPU is needed to compile)"
        )
    return metadata.version("libtpu")


def _kept(key: str, topology: Topology, devices: int) -> TpuProgram | None:
    entry = store().get(KIND, key)
    if entry is None:
        return None
    try:
        return _program(json.loads(zlib.decompress(entry.payload)), topology, devices, cached=True)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        store().reject(KIND, key, repr(error))
        return None


def _program(answer: Mapping[str, Any], topology: Topology, devices: int, *, cached: bool) -> TpuProgram:
    memory = Memory(**answer["memory"])
    proto = base64.b64decode(answer["proto"])
    return TpuProgram(topology, proto, memory, answer["buffers"], answer["seconds"], cached, devices)


def _compiled(module: bytes, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Return the answer of a child process. Raises the errors of `compile_for_tpu`."""
    name: str = request["name"]
    with tempfile.TemporaryDirectory(prefix="lazytpu-") as temporary:
        folder = Path(temporary)
        (folder / MODULE).write_bytes(module)
        (folder / REQUEST).write_text(json.dumps(request))
        command = [sys.executable, str(CHILD), temporary]
        environment = {**os.environ, **ALONE, "PYTHONPATH": search_path()}
        with (folder / "said").open("wb") as log:
            try:
                status = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                status = None
        answer = _read(folder / ANSWER)
        if answer is None:
            raise CompileError(name, f"{_end(status, limit)}. Its last words:\n{_last_words(folder / 'said')}")
    if answer.get("refused") == "topology":
        raise PlatformError(answer["reason"])
    if "refused" in answer:
        raise CompileError(name, answer["reason"])
    return answer


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _end(status: int | None, limit: float) -> str:
    if status is None:
        return f"the TPU compiler was ended after {limit:,.0f} s"
    if status < 0:
        return f"the TPU compiler died of {signal.Signals(-status).name}"
    return f"the TPU compiler ended with status {status} and no answer"


def _last_words(path: Path, lines: int = 12) -> str:
    text = path.read_text(errors="replace").splitlines()
    return "\n".join(text[-lines:]) or "(none)"
