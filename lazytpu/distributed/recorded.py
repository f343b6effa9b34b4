"""The collectives that are recorded, and not cut."""

from __future__ import annotations

from lazytpu.frontend.lines import call_site
from lazytpu.frontend.tensors import recorders
from lazytpu.trace.cuts import PEER
from lazytpu.trace.recorder import Recorder


def pending() -> list[Recorder]:
    """The recorders that have some."""
    return [each for each in recorders() if each.state.traits.collective]


def cut_collectives() -> None:
    """Cut them, which launches them when the others have come."""
    place = call_site()
    for each in pending():
        each.cut(PEER, place)
