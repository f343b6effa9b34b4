"""Arrays whose program failed."""

from __future__ import annotations

from typing import Any

from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from lazytpu.runtime.xla.client import client


def failed_array(like: Any, message: str) -> Any:
    """Return an array of the dtype and shape of `like` whose program failed with this message."""
    return _jax._make_error_array(client(), like, message)
