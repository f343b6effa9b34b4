"""What a compiled program depends on besides its module: where it may run, and who compiled it with which flags."""

from __future__ import annotations

import hashlib
import os
import platform as host
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from lazytpu.readers import plugins
from lazytpu.runtime.xla import client, processor
from lazytpu.version import VERSION

# Flags that say what XLA prints and dumps, not what it compiles.
_SILENT = ("--xla_dump_", "--xla_gpu_cuda_data_dir", "--xla_hlo_profile")

# What /proc/cpuinfo says of a core's kind, on x86 and on ARM; the rest (MHz, microcode) changes and matters to nobody.
_CPU = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
_CPU |= {"Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"}


@cache
def environment() -> Mapping[str, str]:
    """What a program was compiled for and by, in words: programs of two processes may be exchanged when all of it is
    equal. Flags are those of the process's start, as for XLA itself."""
    described = {
        "lazytpu": VERSION,
        "jaxlib": metadata.version("jaxlib"),
        "platform": client.platform(),
        "platform_version": client.platform_version(),
        "topology": client.topology(),
        "xla_flags": flags("XLA_FLAGS"),
    }
    if described["platform"] == "cpu":
        # The number of cores decides into how many parts XLA cuts a loop.
        described["host"] = f"{host_processor()}, {len(os.sched_getaffinity(0))} cores"
    if described["platform"] == "tpu":
        described["libtpu_init_args"] = flags("LIBTPU_INIT_ARGS")
        described["libtpu"] = _libtpu()
    for name, path in sorted(plugins().items()):  # their clients all say the same version, that of the C API
        described[f"plugin {name}"] = library(path)
    return described


def _libtpu() -> str:
    """Its version; where it is not a package, the file of TPU_LIBRARY_PATH."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return library(os.environ.get("TPU_LIBRARY_PATH", ""))


def library(path: str) -> str:
    """Which file a path is now: another build of a library is another."""
    if not os.path.isfile(path):
        return path
    status = os.stat(path)
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@cache
def environment_digest() -> str:
    """`environment()` in 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(environment().items()):
        digest.update(f"{name}={value}\n".encode())
    return digest.hexdigest()


@cache
def source_digest() -> str:
    """A digest of all of lazytpu's own Python files: what turns a trace into a module. 10 ms, once."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def flags(variable: str) -> str:
    """The flags of an environment variable that can change code, in their order (the last of two wins)."""
    return " ".join(flag for flag in os.environ.get(variable, "").split() if not flag.startswith(_SILENT))


def host_processor() -> str:
    """The kind of this machine's processor: its name, and a digest of all it can do."""
    facts = processor.facts()
    kinds = [f"{name}={facts[name]}" for name in facts if name in _CPU]
    digest = hashlib.sha256("\n".join([host.machine(), *kinds]).encode()).hexdigest()
    return f"{facts.get('model name', host.machine())} {digest[:16]}"
