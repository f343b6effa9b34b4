"""Shapes of the results of fused LSTM and GRU cells: torch's meta functions are missing, or compare devices."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.infer import override


def _plain(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(shape or like.shape)


@override("aten._thnn_fused_lstm_cell.default")
def lstm_cell(input_gates: torch.Tensor, cx: torch.Tensor, **rest: Any) -> tuple[torch.Tensor, ...]:
    """(hy, cy, the activated gates)."""
    return _plain(cx), _plain(cx), _plain(input_gates)


@override("aten._thnn_fused_lstm_cell_backward_impl.default")
def lstm_cell_backward(
    cx: torch.Tensor, workspace: torch.Tensor, has_bias: bool, **rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the gates, of cx, and of the bias if there is one."""
    return _plain(workspace), _plain(cx), _plain(workspace, workspace.shape[1]) if has_bias else None


@override("aten._thnn_fused_gru_cell.default")
def gru_cell(hx: torch.Tensor, **rest: Any) -> tuple[torch.Tensor, ...]:
    """(hy, what its gradient needs)."""
    return _plain(hx), _plain(hx, hx.shape[0], 5 * hx.shape[1])


@override("aten._thnn_fused_gru_cell_backward.default")
def gru_cell_backward(grad_hy: torch.Tensor, has_bias: bool, **rest: Any) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the input's gates, the hidden gates, hx, and the biases if there are any."""
    batch, hidden = grad_hy.shape
    gates = [_plain(grad_hy, batch, 3 * hidden) for _ in range(2)]
    biases = [_plain(grad_hy, 3 * hidden) if has_bias else None for _ in range(2)]
    return *gates, _plain(grad_hy), *biases
