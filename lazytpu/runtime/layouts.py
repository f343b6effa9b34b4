"""How the arguments and results of a program lie in memory, where that is not how arrays lie by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lazytpu.runtime import client
from lazytpu.runtime.client import Executable
from lazytpu.runtime.signature import Signature, TensorSpec


@dataclass(frozen=True, slots=True)
class Layouts:
    """By position, layouts as XLA writes them, "{0,1}" from the fastest dimension on; None where it is the default."""

    arguments: tuple[str | None, ...]
    results: tuple[str | None, ...]


def layouts_of(executable: Executable, signature: Signature, device: int = 0) -> Layouts | None:
    """The layouts of an executable; None when all are the default."""
    if not any(signature.laid):
        return None
    arguments, results = client.layouts(executable)
    found = Layouts(
        _others(arguments, signature.arguments, signature.laid[0], device),
        _others(results, signature.results, signature.laid[1], device),
    )
    return found if any(found.arguments) or any(found.results) else None


def _others(
    layouts: Sequence[str], specs: Sequence[TensorSpec], laid: Sequence[int], device: int
) -> tuple[str | None, ...]:
    """The layouts at the positions `laid` that are not the default."""
    found: list[str | None] = [None] * len(specs)
    for i in laid:
        if layouts[i] != client.default_layout(*specs[i], device):
            found[i] = layouts[i]
    return tuple(found)
