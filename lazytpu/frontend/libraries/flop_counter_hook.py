"""torch.utils.flop_counter: the work of recurrent layers, which are one op on the device and products on the CPU."""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

import torch

from lazytpu.frontend.libraries.on_import import when_imported

aten = torch.ops.aten


def forward(input_shape: Any, weight_shapes: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Each row of the input meets each matrix among the weights once; a multiply-add is two operations."""
    rows = prod(input_shape[:-1])
    return sum(2 * rows * prod(shape) for shape in weight_shapes if len(shape) == 2)


def backward(*shapes: Any, out_shape: Any = None, **options: Any) -> int:
    """A product has two gradients, each a product of the same size."""
    return 2 * forward(*shapes)


def _hook(module: ModuleType) -> None:
    counter: Any = module
    counter.register_flop_formula(aten._cudnn_rnn)(forward)
    counter.register_flop_formula(aten._cudnn_rnn_backward)(backward)


def install() -> None:
    """Hook the module when it is imported."""
    when_imported("torch.utils.flop_counter", _hook)
