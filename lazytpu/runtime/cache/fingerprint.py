"""The environment that a compiled program depends on besides its module: the hardware, the compiler and its flags."""

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

# Flags that control XLA's printing and dumping, not its code.
_SILENT = ("--xla_dump_", "--xla_gpu_cuda_data_dir", "--xla_hlo_profile")

# The fields of /proc/cpuinfo that identify a processor, on x86 and on ARM. The others (MHz, microcode) vary without
# effect.
_CPU = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
_CPU |= {"Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"}


@cache
def environment() -> Mapping[str, str]:
    """The environment in words, name -> value. Two processes may exchange programs if all of it is equal. The flags are
    those of the process's start, as for XLA itself."""
    described = {
        "lazytpu": VERSION,
        "jaxlib": metadata.version("jaxlib"),
        "platform": client.platform(),
        "platform_version": client.platform_version(),
        "topology": client.topology(),
        "xla_flags": flags("XLA_FLAGS"),
    }
    if described["platform"] == "cpu":
        # XLA splits loops by the number of cores.
        described["host"] = f"{host_processor()}, {len(os.sched_getaffinity(0))} cores"
    if described["platform"] == "tpu":
        described["libtpu_init_args"] = flags("LIBTPU_INIT_ARGS")
        described["libtpu"] = _libtpu()
    for name, path in sorted(plugins().items()):  # the version of a plugin's client is only that of the C API
        described[f"plugin {name}"] = library(path)
    return described


def _libtpu() -> str:
    """Return the version of libtpu, or the identity of the file of TPU_LIBRARY_PATH if it is not a package."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return library(os.environ.get("TPU_LIBRARY_PATH", ""))


def library(path: str) -> str:
    """Return the identity of the file at a path: its size and time of modification, which change with a new build."""
    if not os.path.isfile(path):
        return path
    status = os.stat(path)
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@cache
def environment_digest() -> str:
    """The digest of `environment()`, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(environment().items()):
        digest.update(f"{name}={value}\n".encode())
    return digest.hexdigest()


@cache
def source_digest() -> str:
    """The digest of lazytpu's Python files, which translate a trace to a module. Their paths are plain strings, since
    pathlib would take most of the time."""
    digest = hashlib.sha256()
    root = str(Path(__file__).parents[2])
    paths = (f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names if name.endswith(".py"))
    for path in sorted(paths):
        digest.update(f"{path[len(root) :]}\n".encode())
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def flags(variable: str) -> str:
    """Return the flags of an environment variable that can change code, in their order (the last of two counts)."""
    return " ".join(flag for flag in os.environ.get(variable, "").split() if not flag.startswith(_SILENT))


def host_processor() -> str:
    """Return the kind of this machine's processor: its name, and a digest of its features."""
    facts = processor.facts()
    kinds = [f"{name}={facts[name]}" for name in facts if name in _CPU]
    digest = hashlib.sha256("\n".join([host.machine(), *kinds]).encode()).hexdigest()
    return f"{facts.get('model name', host.machine())} {digest[:16]}"
