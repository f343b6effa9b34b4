"""Quantization by observed ranges: kernels that read a switch or all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.quantization import check_range
from lazytpu.frontend.recording.kernels import kernel

aten = torch.ops.aten


def moving_average(
    self: torch.Tensor,
    observer_on: torch.Tensor,
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    """The kernel of aten::_fused_moving_avg_obs_fq_helper. Empty averages get an element for each channel, once: for
    that the switch of the observer is read (a cut). Raises the CPU's errors, also where a switch avoids them there."""
    _check((self, running_min, running_max), ch_axis, per_row_fake_quant)
    check_range(quant_min, quant_max)
    state = (running_min, running_max, scale, zero_point)
    if per_row_fake_quant and ch_axis < self.dim() and not running_min.numel() and observer_on.item():
        for tensor, start in zip(state, (inf, -inf, 1, 0), strict=True):
            tensor.resize_(self.size(ch_axis)).fill_(start)
    settings = (averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant)
    return kernel(aten._fused_moving_avg_obs_fq_helper.default).call(
        self, observer_on, fake_quant_on, *state, *settings
    )


def _check(tensors: Sequence[torch.Tensor], axis: int, per_row: bool) -> None:
    for tensor in tensors:
        if tensor.dtype != torch.float32:
            raise RuntimeError(f"expected scalar type Float but found {scalar_type(tensor.dtype)}")
    if per_row and axis:
        raise RuntimeError(
            "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0"
        )
    count = tensors[0].size(0) if per_row and tensors[0].dim() else 1
    if any(x.numel() != count and (x.numel() or not per_row) for x in tensors[1:]):
        raise RuntimeError("dimensions of scale and zero-point are not consistent with input tensor")


def choose_qparams_optimized(
    input: torch.Tensor, numel: int, n_bins: int, ratio: float, bit_width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of aten::choose_qparams_optimized: a search over all numbers, which runs on the host (a
    cut)."""
    high, low = aten.choose_qparams_optimized.default(input.cpu(), numel, n_bins, ratio, bit_width)
    return high.to(input.device), low.to(input.device)


KERNELS: dict[str, Any] = {
    "_fused_moving_avg_obs_fq_helper": moving_average,
    "choose_qparams_optimized": choose_qparams_optimized,
}
