"""Automatic ends of steps in fused mode: after `optimizer.step()`, without a call by the user.

The end is only marked there. The program is launched when the next op is recorded or a value is read. A `zero_grad()`
in between still frees the gradients, which then are not results of the step.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lazytpu import interrupts
from lazytpu.frontend.lines import call_site
from lazytpu.frontend.observed import groups, on_device
from lazytpu.frontend.tensors import STASH
from lazytpu.frontend.torch_private import backward_id, is_stashed, thread_stash


def install() -> None:
    """From now on, end the calling thread's step after every optimizer's step, and delay interrupts until it is
    finished: torch's optimizers write a state in several ops."""
    interrupts.finished_first(os.path.dirname(torch.optim.__file__))
    register_optimizer_step_post_hook(note_end)


def note_end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """The hook of optimizers. Dynamo traces it, and finds no ops in it: a compiled step has no end of its own."""
    if torch.compiler.is_compiling():
        return
    if not is_stashed(STASH):
        return
    # The step is not over: an optimizer per parameter steps inside backward.
    if backward_id() != -1:
        return
    if any(on_device(parameter) for group in groups(optimizer) for parameter in group[:1]):
        thread_stash(STASH).end(call_site())
