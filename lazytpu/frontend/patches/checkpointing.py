"""Activation checkpointing: record the recomputations of torch.utils.checkpoint as intended.

Otherwise a pass would recognize the recomputation as equal to the first computation and share it. Nothing would be
recomputed, and all activations would stay in memory. Both kinds of checkpoint (`use_reentrant`) call their function
again in the backward pass: that call is wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint

from lazytpu.frontend.tensors import STASH
from lazytpu.frontend.torch_private import CheckpointFrame, is_stashed, thread_stash


def _recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_stashed(STASH):  # this thread has not used the device
            return function(*args, **kwargs)
        from lazytpu.frontend.recording.recomputing import recomputing

        with recomputing(thread_stash(STASH), args):
            return function(*args, **kwargs)

    return call


def install() -> None:
    """Wrap the functions that the two kinds of checkpoint call in the backward pass."""
    reentrant = checkpoint.CheckpointFunction
    forward, make = reentrant.forward, CheckpointFrame.__init__

    def forward_and_wrap(ctx: Any, run_function: Any, preserve_rng_state: Any, *args: Any) -> Any:
        outputs = forward(ctx, run_function, preserve_rng_state, *args)
        ctx.run_function = _recomputed(run_function)
        return outputs

    @functools.wraps(make)
    def make_and_wrap(self: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        make(self, _recomputed(recompute_fn), *args, **kwargs)

    reentrant.forward = staticmethod(forward_and_wrap)
    CheckpointFrame.__init__ = make_and_wrap
