"""The initial zeros of a recurrent layer: cached on the device, so that all steps run one program.

`nn.LSTM` without a state creates zeros in each call. A loop that continues with the last state creates them only in its
first step, which would need its own program, as large as the program for all other steps. With cached zeros, the first
step takes its state as an input like the others, and shares their program. That program does not donate the zeros
(engine/compiling).
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
"Maximum layouts per thread, and values per layout; one trace may call as many layers with them."

_ZEROS: Any = torch.ops.aten.zeros.default
_kept: WeakKeyDictionary[Recorder, OrderedDict[Any, list[Tensor]]] = WeakKeyDictionary()


def first_hidden(states: list[Tensor]) -> list[Tensor]:
    """Return `states`, or cached zeros in their place if they are zeros that were recorded just now."""
    r = recorder()
    if r.eager or type(r) is not Recorder:
        return states
    values, state = [value_of(tensor) for tensor in states], r.state
    for tensor, value in zip(reversed(states), reversed(values), strict=True):
        last = state.recorded
        if len(last) != 1 or last[0].op is not _ZEROS or value.epoch != r.epoch or last[0].out_slots != (value.slot,):
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
    """Return zeros that are in no pending trace, nor in `taken`; None if too many are in use.

    The states of one call must be distinct, since their identity is part of the record's key.
    """
    layouts = _kept.setdefault(r, OrderedDict())
    kept = layouts.setdefault(layout.key, [])
    layouts.move_to_end(layout.key)
    if len(layouts) > MOST:
        layouts.popitem(last=False)
    for tensor in kept:
        value = value_of(tensor)
        if value.epoch != r.epoch and value.buffer.error is None and not any(tensor is used for used in taken):
            return tensor
    if len(kept) >= MOST:
        return None
    flat = torch.zeros(layout.shape, dtype=layout.dtype, device="cpu").flatten()
    zeros = wrap(resident(layout, activation.engine().upload(flat, layout, user_line())))
    kept.append(zeros)
    return zeros
