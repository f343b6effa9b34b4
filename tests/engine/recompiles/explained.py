"""Run a step that compiles one program, and return the explanation of it."""

from __future__ import annotations

import torch

import lazytpu
from lazytpu.engine.recompiles.explanation import Made


def on_tpu(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype).to("tpu")


def explanation_of(step: object, *args: object) -> Made:
    """Run `step(*args)` and a cut, check that this added one program, and return its explanation."""
    before = len(lazytpu.explain()) + lazytpu.explain().forgotten
    kept = step(*args)  # type: ignore[operator]
    lazytpu.mark_step()
    del kept
    explained = lazytpu.explain()
    assert len(explained) + explained.forgotten == before + 1, "one program"
    return explained[-1]
