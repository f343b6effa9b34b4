"""What there is to work with: versions, chips, settings, and the client."""

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

SHOWN = tuple("torch jax jaxlib libtpu numpy xdsl jax-cuda12-plugin jax-cuda13-plugin jax-rocm7-plugin".split())
SETTINGS = tuple("JAX_ LAZYTPU_PLATFORM LIBTPU_ PJRT_ TPU_ XLA_ ALLOW_MULTIPLE_ CUDA_VISIBLE_DEVICES".split())
"What the names of variables begin with that decide what runs."
GOOGLE = "0x1ae0"
"The maker of TPUs in a PCI device's description."


@check(device=False)
def versions() -> str:
    """The libraries are those that this lazytpu was made for."""
    found = {name: version for name in SHOWN if (version := _version(name)) is not None}
    wrong = [
        f"{name} {found.get(name, 'missing')}, and lazytpu needs {bounds}"
        for name, bounds in _needs()
        if not _within(found.get(name), bounds)
    ]
    if wrong:
        raise ImportError(f"{'; '.join(wrong)}: pip install --upgrade lazytpu")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _needs() -> list[tuple[str, str]]:
    """(library, bounds) of what lazytpu cannot do without, as its own description has them; none when it is run from a
    folder that was not installed."""
    if _version("lazytpu") is None:
        return []
    texts = [text for text in metadata.requires("lazytpu") or [] if "extra ==" not in text]
    matches = [re.match(r"([\w-]+)\s*([^;]*)", text) for text in texts]
    return [(match[1], match[2].strip()) for match in matches if match and match[1] in SHOWN]


def _within(version: str | None, bounds: str) -> bool:
    """Whether a version meets bounds such as ">=2.13,<2.14": the kinds that pyproject.toml has."""
    if version is None:
        return False
    has = _numbers(version)
    for operator, bound in re.findall(r"(==|>=|<)\s*([\d.]+)", bounds):
        wanted = _numbers(bound)
        length = max(len(has), len(wanted))
        here, there = (numbers + (0,) * (length - len(numbers)) for numbers in (has, wanted))
        if not {"==": here == there, ">=": here >= there, "<": here < there}[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (2, 13, 0) of "2.13.0+cpu"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


@check(device=False)
def settings() -> str:
    """The variables that jax, XLA and libtpu go by."""
    found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)}
    return " ".join(f"{name}={value}" for name, value in found.items()) or "none set"


@check(device=False)
def chips() -> str:
    """The accelerators that the system shows can be opened, and the library for TPUs is there if there is one."""
    tpus = [path for path in glob("/sys/bus/pci/devices/*/vendor") if Path(path).read_text().strip() == GOOGLE]
    files = sorted(glob("/dev/accel*") + glob("/dev/vfio/[0-9]*"))
    gpus = sorted(glob("/dev/nvidia[0-9]*") + glob("/dev/kfd"))
    shut = [path for path in (files if tpus else []) + gpus if not os.access(path, os.R_OK | os.W_OK)]
    if shut:
        raise PermissionError(f"{', '.join(shut)} cannot be opened by this user: add it to their group, or be root")
    own = os.environ.get("TPU_LIBRARY_PATH")
    installed = importlib.util.find_spec("libtpu") is not None
    library = f"TPU_LIBRARY_PATH={own}" if own else f"libtpu {'' if installed else 'not '}installed"
    if tpus and not (installed or own):
        raise ImportError(f"{len(tpus)} TPU chips, and no libtpu to use them: pip install 'lazytpu[tpu]'")
    seen = f"{len(tpus)} TPU chips on the PCI bus" if tpus else "no TPU chip on the PCI bus"
    return ", ".join([seen, *files * bool(tpus), *([f"{len(gpus)} GPUs"] if gpus else []), library])


@check(device=False)
def host() -> str:
    """The processor, the memory, the system."""
    from lazytpu.engine.device import host_available, host_total

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = f"{host_available() / 2**30:.1f} of {host_total() / 2**30:.1f} GiB free"
    python = f"Python {platform.python_version()}"
    return f"{_processor()}, {cores} cores, {memory}, {platform.system()} {platform.release()}, {python}"


def _processor() -> str:
    from lazytpu.runtime.processor import facts

    return facts().get("model name", platform.machine())


@check(limit=90)
def client() -> str:
    """XLA's client can be made, and has a device."""
    from lazytpu.runtime import client as runtime

    devices = runtime.devices()
    kinds = ", ".join(sorted({str(device.device_kind) for device in devices}))
    version = " ".join(runtime.platform_version().split())
    return f"{runtime.platform()}: {len(devices)} x {kinds}, {version}"


@check()
def first_value() -> str:
    """A tensor goes to the device, a program runs on it, and its result comes back."""
    got = (torch.arange(6, device="tpu") * 7).cpu()
    if got.tolist() != [0, 7, 14, 21, 28, 35]:
        raise ValueError(f"arange(6) * 7 gave {got.tolist()}")
    return "arange(6) * 7"
