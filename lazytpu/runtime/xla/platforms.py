"""Which platform a process asks for, and what to do when it is not on this machine."""

from __future__ import annotations

import jax

from lazytpu.readers import plugins
from lazytpu.runtime.errors import PlatformError

_ADVICE = {
    "tpu": "Install libtpu on a machine with a TPU (pip install 'lazytpu[tpu]')",
    "gpu": "Install a jax with support for this GPU (pip install 'jax[cuda]')",
    "cpu": "Unset JAX_PLATFORMS, or add cpu to it",
}
_ADVICE |= dict.fromkeys(("cuda", "rocm"), _ADVICE["gpu"])


def jax_platforms() -> str:
    """The platforms that jax itself is told to use; empty if it may choose."""
    return jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]


def missing_platform(name: str | None, error: RuntimeError) -> PlatformError:
    """The error for a platform that jax does not have here; `name` is what lazytpu's option asks for, if it does."""
    return PlatformError(
        f"{_asked(name)}, but jax has no such platform here: {error}. {_advice(name or jax_platforms())}, or unset "
        f"{'LAZYTPU_PLATFORM' if name else 'JAX_PLATFORMS'} to run on what there is."
    )


def _asked(name: str | None) -> str:
    """What asks for a platform, in words."""
    if name:
        return f"LAZYTPU_PLATFORM asks for {name}"
    return f"JAX_PLATFORMS asks for {jax_platforms()}" if jax_platforms() else "nothing asks for a platform"


def _advice(name: str) -> str:
    path = plugins().get(name)
    if path is not None:
        return f"PJRT_NAMES_AND_LIBRARY_PATHS names {path}, which has to be a library that can be loaded"
    return _ADVICE.get(name, "Name a platform that it has")
