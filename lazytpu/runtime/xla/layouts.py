"""Non-default layouts of a program's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.client import Executable
from lazytpu.runtime.xla.signature import Signature, TensorSpec


@dataclass(frozen=True, slots=True)
class Layouts:
    """Layouts by position, in XLA's notation: "{0,1}" from the fastest dimension on; None for the default layout."""

    arguments: tuple[str | None, ...]
    results: tuple[str | None, ...]


def layouts_of(executable: Executable, signature: Signature, device: int = 0) -> Layouts | None:
    """Return the layouts of an executable; None when all are the default."""
    if not any(signature.laid):
        return None
    arguments, results = executable.get_parameter_layouts(), executable.get_output_layouts()
    layouts = Layouts(
        _others(arguments, signature.arguments, signature.laid[0], device),
        _others(results, signature.results, signature.laid[1], device),
    )
    return layouts if any(layouts.arguments) or any(layouts.results) else None


@lru_cache(maxsize=4096)
def default_layout(dtype: np.dtype[Any], shape: tuple[int, ...], device: int = 0) -> str:
    """Return the layout that an array of that dtype and shape has on a device by default."""
    return str(client.client().get_default_layout(dtype, shape, client.devices()[device]))


def _others(
    layouts: Sequence[Any], specs: Sequence[TensorSpec], custom: Sequence[int], device: int
) -> tuple[str | None, ...]:
    """Return the layouts at the positions `custom` that are not the default."""
    non_default: list[str | None] = [None] * len(specs)
    for i in custom:
        if str(layouts[i]) != default_layout(*specs[i], device):
            non_default[i] = str(layouts[i])
    return tuple(non_default)
