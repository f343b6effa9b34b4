"""torch.utils.flop_counter for recurrent layers, which are one op on the device and matrix products on the CPU."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from lazytpu.frontend.torch_private import REGISTER_FLOPS

aten = torch.ops.aten


def forward(input_shape: Any, weight_shapes: Any, *unused: Any, out_shape: Any = None, **options: Any) -> int:
    """Return the operations of a layer: each row of the input is multiplied once by each matrix; a multiply-add counts
    as two."""
    rows = prod(input_shape[:-1])
    return sum(2 * rows * prod(shape) for shape in weight_shapes if len(shape) == 2)


def backward(*shapes: Any, out_shape: Any = None, **options: Any) -> int:
    """Return the operations of the gradients: each product has two, each a product of the same size."""
    return 2 * forward(*shapes)


def _hook(module: Any) -> None:
    register = REGISTER_FLOPS.get()
    register(aten._cudnn_rnn)(forward)
    register(aten._cudnn_rnn_backward)(backward)


HOOKS = {REGISTER_FLOPS.module: _hook}
