"""The state that an optimizer creates in its first step, such as Adam's averages: uploaded, not recorded.

Adam fills its averages in the first step and reads them in all others. So the recorded first step would need a program
of its own, as large as the program for all others. The fills are numbers that the host knows. As uploaded buffers they
are inputs of the first step already, so it runs the same program as the others. Checked on a miss only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line
from lazytpu.frontend.tensors import wrap
from lazytpu.frontend.torch_private import MODULE_CALL, OPTIMIZER_STEP, SCALER_STATE
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import Layout, resident

# The fill value of each op: a number, or the name of the argument that contains it.
_FILLS: dict[str, int | str] = {
    **dict.fromkeys(("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"), 0),
    **dict.fromkeys(("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"), 1),
    **dict.fromkeys(("aten.full.default", "aten.full_like.default", "aten.new_full.default"), "fill_value"),
}

# The optimizers that created state, by id, since they may define equality and then have no hash; and for each, the trie
# states at which it did, with the trace. An optimizer that fills memory there in another trace does so in every step.
# From then on its fills are recorded (None).
_makers: WeakValueDictionary[int, Any] = WeakValueDictionary()
_made: dict[int, WeakKeyDictionary[State, int] | None] = {}


@dataclass(frozen=True, slots=True)
class FirstState:
    """The state that an op creates: a tensor of this layout, filled with a number."""

    layout: Layout
    number: Any

    def tensor(self) -> torch.Tensor:
        """Upload the state. Raises OutOfMemoryError when there is no memory for it."""
        flat = torch.full(self.layout.shape, self.number, dtype=self.layout.dtype, device="cpu").flatten()
        return wrap(resident(self.layout, activation.engine().upload(flat, self.layout, user_line())))


def first_state(r: Recorder, op: str, bound: Mapping[str, Any], layout: Layout | None) -> FirstState | None:
    """Return the optimizer's state that `op`, as the next record, creates, or None.

    Does nothing in eager mode, which has no steps to share a program, and for recorders of another kind, which inspect
    all records.
    """
    fill = _FILLS.get(op)
    if fill is None or layout is None or r.eager or type(r) is not Recorder:
        return None
    maker = _maker(sys._getframe(1))
    if maker is None:
        return None
    if _makers.get(id(maker)) is not maker:
        _makers[id(maker)] = maker
        _made[id(maker)] = WeakKeyDictionary()
        for gone in _made.keys() - _makers.keys():
            del _made[gone]
    states = _made[id(maker)]
    if states is None:
        return None
    if states.setdefault(r.state, r.epoch) != r.epoch:
        _made[id(maker)] = None
        return None
    return FirstState(layout, bound[fill] if isinstance(fill, str) else fill)


def _maker(frame: FrameType | None) -> Any:
    """Return the optimizer or gradient scaler that calls the op; None inside a closure of an optimizer's step.

    Closures call modules or compute gradients, which most optimizers disable for their own part.
    """
    while frame is not None and frame.f_code is not MODULE_CALL:
        if frame.f_code is SCALER_STATE or (frame.f_code is OPTIMIZER_STEP and not _in_closure(frame.f_locals)):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _in_closure(step: Mapping[str, Any]) -> bool:
    """Return whether the op may belong to the closure that was passed to this call of an optimizer's step."""
    arguments = (*step["args"][1:], *step["kwargs"].values())
    return torch.is_grad_enabled() and any(argument is not None for argument in arguments)
