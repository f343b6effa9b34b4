"""The collectives that are recorded, and not cut yet."""

from __future__ import annotations

from lazytpu.frontend.lines import call_site
from lazytpu.frontend.tensors import recorders
from lazytpu.trace.cuts import PEER
from lazytpu.trace.recorder import Recorder


def pending() -> list[Recorder]:
    """Return the recorders whose pending traces have collectives."""
    return [recorder for recorder in recorders() if recorder.state.traits.collective]


def cut_collectives() -> None:
    """Cut these traces. Their collectives are launched when the other ranks have posted them too."""
    place = call_site()
    for recorder in pending():
        recorder.cut(PEER, place)
