"""The machine: versions, settings, chips and the client."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from glob import glob
from importlib import metadata
from pathlib import Path

import torch

from lazytpu.doctor.check import check
from lazytpu.versions import release

SHOWN = tuple("torch jax jaxlib libtpu numpy xdsl jax-cuda12-plugin jax-cuda13-plugin jax-rocm7-plugin".split())
SETTINGS = tuple("JAX_ LAZYTPU_PLATFORM LIBTPU_ PJRT_ TPU_ XLA_ ALLOW_MULTIPLE_ CUDA_VISIBLE_DEVICES".split())
"Prefixes of the environment variables that jax, XLA and libtpu read."
GOOGLE = "0x1ae0"
"The PCI vendor of TPUs."


@check(device=False)
def versions() -> str:
    """The libraries have the versions that this lazytpu needs."""
    installed = {name: version for name in SHOWN if (version := _version(name)) is not None}
    wrong = [
        f"{name} {installed.get(name, 'missing')}, but lazytpu needs {bounds}"
        for name, bounds in _needs()
        if not _within(installed.get(name), bounds)
    ]
    if wrong:
        raise ImportError(f"{'; '.join(wrong)}: pip install --upgrade lazytpu")
    return ", ".join(f"{name} {version}" for name, version in installed.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _needs() -> list[tuple[str, str]]:
    """(library, bounds) of lazytpu's requirements, from its package metadata; none if it is not installed."""
    if _version("lazytpu") is None:
        return []
    texts = [text for text in metadata.requires("lazytpu") or [] if "extra ==" not in text]
    matches = [re.match(r"([\w-]+)\s*([^;]*)", text) for text in texts]
    return [(match[1], match[2].strip()) for match in matches if match and match[1] in SHOWN]


def _within(version: str | None, bounds: str) -> bool:
    """Whether a version meets bounds such as ">=2.13,<2.14". Only knows the operators used in pyproject.toml."""
    if version is None:
        return False
    installed = release(version)
    for operator, bound in re.findall(r"(==|>=|<)\s*([\d.]+)", bounds):
        limit = release(bound)
        length = max(len(installed), len(limit))
        left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (installed, limit))
        if not {"==": left == right, ">=": left >= right, "<": left < right}[operator]:
            return False
    return True


@check(device=False)
def settings() -> str:
    """The environment variables that jax, XLA and libtpu read."""
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)}
    return " ".join(f"{name}={value}" for name, value in variables.items()) or "none set"


@check(device=False)
def chips() -> str:
    """The accelerators that the system lists can be opened, and libtpu is present if there is a TPU."""
    tpus = [path for path in glob("/sys/bus/pci/devices/*/vendor") if Path(path).read_text().strip() == GOOGLE]
    files = sorted(glob("/dev/accel*") + glob("/dev/vfio/[0-9]*"))
    gpus = sorted(glob("/dev/nvidia[0-9]*") + glob("/dev/kfd"))
    shut = [path for path in (files if tpus else []) + gpus if not os.access(path, os.R_OK | os.W_OK)]
    if shut:
        raise PermissionError(f"{', '.join(shut)} cannot be opened by this user: join their group, or run as root")
    configured = os.environ.get("TPU_LIBRARY_PATH")
    installed = importlib.util.find_spec("libtpu") is not None
    library = f"TPU_LIBRARY_PATH={configured}" if configured else f"libtpu {'' if installed else 'not '}installed"
    if tpus and not (installed or configured):
        raise ImportError(f"{len(tpus)} TPU chips, but no libtpu to use them: pip install 'lazytpu[tpu]'")
    seen = f"{len(tpus)} TPU chips on the PCI bus" if tpus else "no TPU chip on the PCI bus"
    return ", ".join([seen, *files * bool(tpus), *([f"{len(gpus)} GPUs"] if gpus else []), library])


@check(device=False)
def host() -> str:
    """The processor, memory and operating system."""
    from lazytpu.engine.device import host_available, host_total

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = f"{host_available() / 2**30:.1f} of {host_total() / 2**30:.1f} GiB free"
    python = f"Python {platform.python_version()}"
    return f"{_processor()}, {cores} cores, {memory}, {platform.system()} {platform.release()}, {python}"


def _processor() -> str:
    from lazytpu.runtime.xla.processor import facts

    return facts().get("model name", platform.machine())


@check(limit=90)
def client() -> str:
    """XLA's client can be created and has a device."""
    from lazytpu.runtime.xla import client as runtime

    devices = runtime.devices()
    kinds = ", ".join(sorted({str(device.device_kind) for device in devices}))
    version = " ".join(runtime.platform_version().split())
    return f"{runtime.platform()}: {len(devices)} x {kinds}, {version}"


@check()
def first_value() -> str:
    """A tensor goes to the device, a program runs on it, and its result comes back."""
    result = (torch.arange(6, device="tpu") * 7).cpu()
    if result.tolist() != [0, 7, 14, 21, 28, 35]:
        raise ValueError(f"arange(6) * 7 gave {result.tolist()}")
    return "arange(6) * 7"
