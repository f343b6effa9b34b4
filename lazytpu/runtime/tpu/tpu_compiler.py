"""Programs compiled for a TPU that is not there, to be looked at: `compile_for_tpu`.

libtpu compiles in a process of its own, because it may abort, hang, and hold a gigabyte. What it made is kept in the
cache on disk under a digest of everything that goes in, source lines included.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

from lazytpu.runtime.cache.fingerprint import flags, library
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.children import search_path
from lazytpu.runtime.errors import CompileError, PlatformError
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
"Seconds that a compilation may take: a large step takes minutes; one that hangs is ended."

# No TPU is looked for, here or at Google's metadata server, and other processes may have libtpu loaded.
ALONE = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "2",
}

# Of each generation: dimensions of a topology, chips of the largest, devices that a chip shows to XLA.
_GENERATIONS = {"v5e": (2, 256, 1), "v6e": (2, 256, 1), "v5p": (3, 8960, 1), "tpu7x": (3, 9216, 2)}


@dataclass(frozen=True, slots=True)
class Topology:
    """An arrangement of TPU chips, "v6e:2x2": its generation, and the chips in each dimension."""

    generation: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Topology:
        """The topology of a name; that of a generation alone, "v6e", stands for its smallest. Raises ValueError that
        says what a topology is called."""
        match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", full_name(text))
        generation, shape = (match[1], tuple(map(int, match[2].split("x")))) if match else ("", ())
        dimensions, largest, _ = _GENERATIONS.get(generation, (0, 0, 0))
        if len(shape) != dimensions or not 1 <= prod(shape) <= largest:
            raise ValueError(
                f"{text!r} is no TPU topology: a generation and its chips in each dimension, v5e:4x4 and v6e:2x2 "
                "(up to 256 chips), v5p:2x2x1 (up to 8,960), tpu7x:2x2x1 (up to 9,216); v6e alone is the smallest"
            )
        return cls(generation, shape)

    @property
    def chips(self) -> int:
        """How many chips there are."""
        return prod(self.shape)

    @property
    def devices(self) -> int:
        """How many devices XLA sees: of a tpu7x two a chip."""
        return self.chips * _GENERATIONS[self.generation][2]

    @property
    def smallest(self) -> Topology:
        """The smallest arrangement of these chips that libtpu knows, one host of four. A program for one device is
        compiled for it, so that its compilation, and its entry in the cache, is the same for a pod."""
        return Topology.parse(smallest(self.generation))

    def __str__(self) -> str:
        return f"{self.generation}:{'x'.join(map(str, self.shape))}"


def full_name(topology: str) -> str:
    """A topology's name in lower case; a generation alone, "v6e", stands for its smallest."""
    name = topology.strip().lower()
    return smallest(name) if name in _GENERATIONS else name


def smallest(generation: str) -> str:
    """The smallest topology of a generation, "v6e:2x2"."""
    dimensions, _, _ = _GENERATIONS[generation]
    return str(Topology(generation, (2, 2, 1)[:dimensions]))


def installed() -> bool:
    """Whether libtpu, which compiles, is there."""
    return os.path.isfile(os.environ.get("TPU_LIBRARY_PATH", "")) or importlib.util.find_spec("libtpu") is not None


@dataclass(frozen=True, slots=True)
class TpuProgram:
    """What the TPU compiler made of a module.

    `proto` is an HloProto of the scheduled module after code generation, with estimated cycles in the ops'
    backend_config; `buffers` the compiler's own list of allocations and the values in each; `seconds` what compiling
    took, though one that is `cached` took nothing now; `devices` on how many it runs at once.
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
    """Compile a StableHLO module (text or bytecode, with a public `@main`) for a topology, in a process of its own that
    has `limit` seconds; for as many devices as the module says (`mhlo.num_partitions`, `mhlo.num_replicas`), or for
    `partitions`. `options` are XLA's and libtpu's by name, such as `{"xla_tpu_enable_latency_hiding_scheduler": True}`;
    those that the module asks for, XLA_FLAGS and LIBTPU_INIT_ARGS hold as well.

    Raises:
        ValueError: the topology is none, or has fewer devices.
        PlatformError: libtpu is not installed, or knows no such topology.
        CompileError: the compiler refused the module, died, or took too long; `name` is what the message calls it.
    """
    wanted = Topology.parse(topology)
    own, replicas = _devices_of(stablehlo, name)
    partitions = own if partitions is None else partitions
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
    """(partitions, replicas) that a module says it is for."""
    with mlir_context():
        try:
            parsed = ir.Module.parse(module)
        except ir.MLIRError as error:
            raise CompileError(name, str(error)) from error
        attributes = parsed.operation.attributes
        partitions = ir.IntegerAttr(attributes[PARTITIONS]).value if PARTITIONS in attributes else 1
        return partitions, replicas_of(parsed)


def _key(module: bytes, request: Mapping[str, Any]) -> str:
    """The digest of all that goes in. Raises PlatformError without libtpu."""
    parts = {
        **request,
        "version": VERSION,
        "libtpu": libtpu(),
        "jaxlib": metadata.version("jaxlib"),
        "flags": [flags("XLA_FLAGS"), flags("LIBTPU_INIT_ARGS")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode() + b"\n" + module).hexdigest()


def libtpu() -> str:
    """Which libtpu there is, the version of the installed one; the one of TPU_LIBRARY_PATH goes before it, as in jax.

    Raises PlatformError when there is none.
    """
    path, spec = os.environ.get("TPU_LIBRARY_PATH", ""), importlib.util.find_spec("libtpu")
    own = [] if spec is None else list(spec.submodule_search_locations or ())  # jax sets the path to the installed one
    if os.path.isfile(path) and os.path.dirname(path) not in own:
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
    """The answer of a child process; raises what `compile_for_tpu` does."""
    name: str = request["name"]
    with tempfile.TemporaryDirectory(prefix="lazytpu-") as temporary:
        folder = Path(temporary)
        (folder / MODULE).write_bytes(module)
        (folder / REQUEST).write_text(json.dumps(request))
        command = [sys.executable, str(CHILD), temporary]
        environment = {**os.environ, **ALONE, "PYTHONPATH": search_path()}
        with (folder / "said").open("wb") as said:
            try:
                status = subprocess.run(command, env=environment, stdout=said, stderr=said, timeout=limit).returncode
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
    said = path.read_text(errors="replace").splitlines()
    return "\n".join(said[-lines:]) or "(none)"
