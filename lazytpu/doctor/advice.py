"""What to do about outcomes that are known to have a reason outside lazytpu."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lazytpu.doctor.outcome import BAD, HUNG, Outcome

# A pattern in an outcome's detail or in what was said, and what to do about it: the first that is found counts.
_KNOWN = (
    (
        r"Failed to open|cannot open shared object file",
        "the path of a plugin in PJRT_NAMES_AND_LIBRARY_PATHS (name:path,name:path) must be that of a library for this "
        "machine; `ldd PATH` says what it lacks. Unset it, and JAX_PLATFORMS, to do without.",
    ),
    (
        r"No jellyfish device|No TPU|TPU initialization failed",
        "libtpu finds no chip. On a machine with one, look whether this user, or this container, may open /dev/vfio/* "
        "or /dev/accel* (docker run --privileged). On one without, unset LAZYTPU_PLATFORM and JAX_PLATFORMS: lazytpu "
        "runs on the CPU, and lazytpu.tpu_report() compiles for TPUs that are not there.",
    ),
    (
        r"already in use by|libtpu_lockfile|Couldn't open iommu group|Device or resource busy",
        "another process holds the chip: end it (`sudo lsof /dev/vfio/* /dev/accel*` names it). When there is none, "
        "remove /tmp/libtpu_lockfile.",
    ),
    (
        r"no platforms that are instances of tpu|no such platform|Unknown backend|is not in the list of known backends",
        "jax knows no platform of that name: pip install 'lazytpu[tpu]' for a TPU, 'jax[cuda12]' for an NVIDIA GPU; or "
        "name a plugin by PJRT_NAMES_AND_LIBRARY_PATHS=name:path.",
    ),
    (
        r"RESOURCE_EXHAUSTED|OutOfMemory",
        "the device is full: look for another process on it (nvidia-smi, tpu-info).",
    ),
    (
        r"GLIBC_|GLIBCXX_",
        "a library was built for a newer system than this: its wheel for this system, or a newer system.",
    ),
)
_WAITS = (
    "making a client took too long. libtpu asks Google's metadata server which machine it is on: outside Google Cloud, "
    "set TPU_SKIP_MDS_QUERY=1. On one host of a slice of several, it waits for the others: start the same command on "
    "all of them, or set TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_VISIBLE_CHIPS=0 for one chip."
)


def advice(outcomes: Iterable[Outcome]) -> list[str]:
    """What to do, each once, in the order of the outcomes."""
    return list(dict.fromkeys(text for each in outcomes if each.status in BAD and (text := _about(each)) is not None))


def _about(outcome: Outcome) -> str | None:
    if outcome.status == HUNG and outcome.name == "client":
        return _WAITS
    words = f"{outcome.detail}\n{outcome.said}"
    return next((text for pattern, text in _KNOWN if re.search(pattern, words)), None)
