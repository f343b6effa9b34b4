"""The zeros that a recurrent layer begins with: kept on the device, one value for all steps.

`nn.LSTM` without a state makes zeros in each call. A loop that goes on with the last state makes them in its first step
alone, which would be a program of its own, as large as that of all others. With zeros that are there already, as the
last state is there for the others, both are the same program. It does not take their memory (engine/compiling).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line
from lazytpu.frontend.tensors import is_natural, recorder, value_of, wrap
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.value import Layout, resident

MOST = 16
"Layouts that a thread keeps zeros of, and the values of each: one trace may call as many layers with them."

_ZEROS: Any = torch.ops.aten.zeros.default
_kept: WeakKeyDictionary[Recorder, OrderedDict[Any, list[Tensor]]] = WeakKeyDictionary()


def first_hidden(states: list[Tensor]) -> list[Tensor]:
    """`states`, or kept zeros in their place if they are zeros that were recorded just now."""
    r = recorder()
    if r.eager or type(r) is not Recorder:
        return states
    values, state = [value_of(tensor) for tensor in states], r.state
    for tensor, value in zip(reversed(states), reversed(values), strict=True):
        made = state.recorded
        if len(made) != 1 or made[0].op is not _ZEROS or value.epoch != r.epoch or made[0].out_slots != (value.slot,):
            return states
        if tensor.requires_grad or not is_natural(tensor, value.layout):
            return states
        state = state.parent or r.root
    taken: list[Tensor] = []
    for value in values:
        zeros = _zeros(r, value.layout, taken)
        if zeros is None:
            return states
        taken.append(zeros)
    return taken


def _zeros(r: Recorder, layout: Layout, taken: list[Tensor]) -> Tensor | None:
    """Zeros that are in no pending trace, nor among those that were just `taken`: which states are one is part of what
    is recorded. None where many are."""
    layouts = _kept.setdefault(r, OrderedDict())
    kept = layouts.setdefault(layout.key, [])
    layouts.move_to_end(layout.key)
    if len(layouts) > MOST:
        layouts.popitem(last=False)
    for tensor in kept:
        value = value_of(tensor)
        if value.epoch != r.epoch and value.buffer.error is None and not any(tensor is other for other in taken):
            return tensor
    if len(kept) >= MOST:
        return None
    flat = torch.zeros(layout.shape, dtype=layout.dtype, device="cpu").flatten()
    made = wrap(resident(layout, activation.engine().upload(flat, layout, user_line())))
    kept.append(made)
    return made
