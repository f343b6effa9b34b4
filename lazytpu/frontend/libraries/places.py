"""Use or replace attributes of torch when their module is imported (`lazytpu.frontend.torch_private.Place`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.frontend.torch_private import Place


def call_when_imported(place: Place, act: Callable[[Any], None]) -> None:
    """Call `act(value)` with the value at `place` right after its module has been executed, or now."""
    when_imported(place.module, lambda _: act(place.get()))


def replace_when_imported(place: Place, change: Callable[[Any], Any]) -> None:
    """Replace the value at `place` by `change(value)`, at the same time."""
    call_when_imported(place, lambda native: place.set(change(native)))
