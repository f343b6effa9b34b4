"""Advice for results whose known cause is outside lazytpu."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lazytpu.doctor.outcome import BAD, HUNG, CheckOutcome

# (pattern in a result's detail or in its process's output, advice): the first match counts.
_KNOWN = (
    (
        r"Failed to open|cannot open shared object file",
        "the path of a plugin in PJRT_NAMES_AND_LIBRARY_PATHS (name:path,name:path) must be that of a library for this "
        "machine; `ldd PATH` shows what it lacks. To do without plugins, unset it and JAX_PLATFORMS.",
    ),
    (
        r"No jellyfish device|No TPU|TPU initialization failed",
        "libtpu finds no chip. On a machine with one, check that this user or container may open /dev/vfio/* or "
        "/dev/accel* (docker run --privileged). Without a chip, unset LAZYTPU_PLATFORM and JAX_PLATFORMS: lazytpu "
        "runs on the CPU, and lazytpu.tpu_report() compiles for a TPU without having one.",
    ),
    (
        r"already in use by|libtpu_lockfile|Couldn't open iommu group|Device or resource busy",
        "another process holds the chip: end it (`sudo lsof /dev/vfio/* /dev/accel*` names it). If there is none, "
        "remove /tmp/libtpu_lockfile.",
    ),
    (
        r"no platforms that are instances of tpu|no such platform|Unknown backend|is not in the list of known backends",
        "jax knows no platform of that name: pip install 'lazytpu[tpu]' for a TPU, 'jax[cuda12]' for an NVIDIA GPU, or "
        "set PJRT_NAMES_AND_LIBRARY_PATHS=name:path for a plugin.",
    ),
    (
        r"RESOURCE_EXHAUSTED|OutOfMemory",
        "the device's memory is full: look for another process that uses it (nvidia-smi, tpu-info).",
    ),
    (
        r"GLIBC_|GLIBCXX_",
        "a library was built for a newer system than this: install its wheel for this system, or upgrade the system.",
    ),
)
_WAITS = (
    "creating a client took too long. libtpu asks Google's metadata server which machine it runs on: outside Google "
    "Cloud, set TPU_SKIP_MDS_QUERY=1. On a slice of several hosts, it waits for the others: start the same command on "
    "all of them, or set TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_VISIBLE_CHIPS=0 for one chip."
)


def advice(outcomes: Iterable[CheckOutcome]) -> list[str]:
    """Return advice for the outcomes, in their order and without repetition."""
    return list(
        dict.fromkeys(text for outcome in outcomes if outcome.status in BAD and (text := _about(outcome)) is not None)
    )


def _about(outcome: CheckOutcome) -> str | None:
    if outcome.status == HUNG and outcome.name == "client":
        return _WAITS
    words = f"{outcome.detail}\n{outcome.said}"
    return next((text for pattern, text in _KNOWN if re.search(pattern, words)), None)
