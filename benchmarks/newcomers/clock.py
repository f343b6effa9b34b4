"""What the newcomers' scripts are measured by: `on_device(model)`, and `for step in clock(60)`.

    python benchmarks/newcomers/lstm.py DEVICE [STEPS]

DEVICE is tpu, cpu (stock PyTorch), or inductor (its torch.compile on the CPU). A script prints, as its last line, JSON:
seconds since the process was started at the end of each step, when it was done, and what lazytpu counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)

KIND = sys.argv[1] if len(sys.argv) > 1 else "tpu"
STARTED = float(os.environ.get("STARTED") or time.time())  # when whoever started this process did so

device = "tpu" if KIND == "tpu" else "cpu"
ends: list[float] = []


def on_device(model: Module) -> Module:
    """The model where it is to be trained, compiled if that is asked for."""
    model = model.to(device)
    if KIND == "inductor":
        model.compile()
    return model


def steps_of(usual: int) -> int:
    """How many steps to make, when a script has `usual` ones."""
    return int(sys.argv[2]) if len(sys.argv) > 2 else usual


def tick() -> None:
    """The end of a step, which has read its loss."""
    ends.append(time.time() - STARTED)


def clock(usual: int) -> Iterator[int]:
    """The numbers of the steps."""
    for step in range(steps_of(usual)):
        yield step
        tick()


def report() -> None:
    """The script is done."""
    counted: dict[str, Any] = {}
    if device == "tpu":
        import lazytpu

        lazytpu.sync()
        counted = lazytpu.metrics()
    found = {name: counted.get(name, 0) for name in ("compiles", "cache_hits")}
    print(json.dumps({"ends": ends, "whole": time.time() - STARTED, **found}))
