"""The records around an intended recomputation; `lazytpu.aten.recompute` says what they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.tensors import parts
from lazytpu.frontend.torch_private import pytree
from lazytpu.trace.recorder import Recorder

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("recompute_begin(Tensor[] saved, int ticket) -> ()")
LIBRARY.define("recompute_end() -> ()")
OPS: Any = torch.ops.lazytpu


@override("lazytpu.recompute_begin.default", "lazytpu.recompute_end.default")
def _nothing(**arguments: Any) -> tuple[()]:
    return ()


@contextmanager
def recomputing(recorder: Recorder, arguments: tuple[Any, ...]) -> Iterator[None]:
    """Mark the ops recorded inside as a recomputation from `arguments`: tensors, trees of them, and other values."""
    if recorder.state is recorder.root:  # nothing is pending that it could be shared with
        yield
        return
    saved = [part for leaf in pytree.tree_leaves(arguments) for _, part in parts(leaf)]
    kernel(OPS.recompute_begin.default).call(saved, 0)
    whole = recorder.whole
    try:
        yield
    finally:
        if recorder.whole == whole:  # else the trace was cut inside, and the new one has no beginning of it
            kernel(OPS.recompute_end.default).call()
