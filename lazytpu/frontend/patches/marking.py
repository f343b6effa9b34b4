"""`torch._dynamo.mark_dynamic` of a device tensor also does `lazytpu.mark_dynamic`: it pads the tensor's memory.
Installed when Dynamo is imported."""

from __future__ import annotations

import functools
from typing import Any

import torch

from lazytpu.frontend import torch_private as private
from lazytpu.frontend.libraries.places import call_when_imported


def install() -> None:
    """Wrap it once Dynamo is imported."""
    call_when_imported(private.MARKS[0], _wrap)


def _wrap(marks: Any) -> None:
    @functools.wraps(marks)  # also copies the attribute that forbids it in graphs
    def mark_dynamic(t: Any, index: Any, **limits: Any) -> None:
        marks(t, index, **limits)
        if isinstance(t, torch.Tensor) and type(index) is int and t.device.type == "tpu":
            from lazytpu.frontend.ops.marking import pad

            pad(t)

    for place in private.MARKS:
        place.set(mark_dynamic)
