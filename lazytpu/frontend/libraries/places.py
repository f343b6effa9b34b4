"""Using and replacing attributes of torch when their module is imported (`lazytpu.frontend.torch_private.Place`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.frontend.torch_private import Place


def call_when_imported(place: Place, act: Callable[[Any], None]) -> None:
    """Call `act(value)` with what is at `place` right after its module has been executed, or now."""
    when_imported(place.module, lambda _: act(place.get()))


def replace_when_imported(place: Place, change: Callable[[Any], Any]) -> None:
    """Put `change(value)` there in the same way."""
    call_when_imported(place, lambda native: place.set(change(native)))
