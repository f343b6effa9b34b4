"""torch.utils.flop_counter: the work of recurrent layers, which are one op on the device and products on the CPU."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from lazytpu.frontend.libraries.places import call_when_imported
from lazytpu.frontend.torch_private import REGISTER_FLOPS

aten = torch.ops.aten


def forward(input_shape: Any, weight_shapes: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Each row of the input meets each matrix among the weights once; a multiply-add is two operations."""
    rows = prod(input_shape[:-1])
    return sum(2 * rows * prod(shape) for shape in weight_shapes if len(shape) == 2)


def backward(*shapes: Any, out_shape: Any = None, **options: Any) -> int:
    """A product has two gradients, each a product of the same size."""
    return 2 * forward(*shapes)


def _hook(register: Any) -> None:
    register(aten._cudnn_rnn)(forward)
    register(aten._cudnn_rnn_backward)(backward)


def install() -> None:
    """Hook the module when it is imported."""
    call_when_imported(REGISTER_FLOPS, _hook)
