"""The platform that a process requests, and the advice when it is not available on this machine."""

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
    """Return the platforms that jax is configured to use; empty if it may choose."""
    return jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]


def missing_platform(name: str | None, error: RuntimeError) -> PlatformError:
    """Return the error for a platform that jax does not have here. `name` is lazytpu's option, None if unset."""
    return PlatformError(
        f"{_asked(name)}, but jax has no such platform here: {error}. {_advice(name or jax_platforms())}, or unset "
        f"{'LAZYTPU_PLATFORM' if name else 'JAX_PLATFORMS'} to run on what there is."
    )


def _asked(name: str | None) -> str:
    """Describe the source of the request for a platform."""
    if name:
        return f"LAZYTPU_PLATFORM asks for {name}"
    return f"JAX_PLATFORMS asks for {jax_platforms()}" if jax_platforms() else "nothing asks for a platform"


def _advice(name: str) -> str:
    path = plugins().get(name)
    if path is not None:
        return f"PJRT_NAMES_AND_LIBRARY_PATHS names {path}, which has to be a library that can be loaded"
    return _ADVICE.get(name, "Name a platform that it has")
