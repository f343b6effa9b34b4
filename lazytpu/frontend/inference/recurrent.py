"""Fused LSTM and GRU cells: argument checks, and shapes of results. torch's meta functions are missing, or compare
devices."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.infer import override


def _plain(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(shape or like.shape)


def _check(op: str, input_gates: torch.Tensor, hidden_gates: torch.Tensor, state: torch.Tensor, *biases: Any) -> None:
    """Make the checks of the op's kernels for other devices. Raises RuntimeError when sizes or dtypes do not match."""
    batch, size = input_gates.shape
    expected = {"hidden_gates": (hidden_gates, (batch, size)), "state": (state, (batch, state.shape[-1]))}
    expected |= {
        name: (b, (size,)) for name, b in zip(("input_bias", "hidden_bias"), biases, strict=True) if b is not None
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise RuntimeError(f"{op}: {name} has the sizes {list(tensor.shape)}, but they have to be {list(shape)}")
        if tensor.dtype != input_gates.dtype and tensor is not state:
            raise RuntimeError(f"{op}: {name} is {tensor.dtype}, but the gates of the input are {input_gates.dtype}")


@override("aten._thnn_fused_lstm_cell.default")
def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return (hy, cy, the activated gates). Only the state may have another dtype: it is promoted."""
    _check("_thnn_fused_lstm_cell", input_gates, hidden_gates, cx, input_bias, hidden_bias)
    dtype = torch.promote_types(input_gates.dtype, cx.dtype)
    return _plain(cx).to(dtype), _plain(cx).to(dtype), _plain(input_gates)


@override("aten._thnn_fused_lstm_cell_backward_impl.default")
def lstm_cell_backward(
    cx: torch.Tensor, workspace: torch.Tensor, has_bias: bool, **unused: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return gradients of the gates, of cx, and of the bias if there is one."""
    return _plain(workspace), _plain(cx), _plain(workspace, workspace.shape[1]) if has_bias else None


@override("aten._thnn_fused_gru_cell.default")
def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return (hy, the workspace for its gradient)."""
    _check("_thnn_fused_gru_cell", input_gates, hidden_gates, hx, input_bias, hidden_bias)
    return _plain(hx), _plain(hx, hx.shape[0], 5 * hx.shape[1])


@override("aten._thnn_fused_gru_cell_backward.default")
def gru_cell_backward(grad_hy: torch.Tensor, has_bias: bool, **unused: Any) -> tuple[torch.Tensor | None, ...]:
    """Return gradients of the input's gates, the hidden gates, hx, and the biases if there are any."""
    batch, hidden = grad_hy.shape
    gates = [_plain(grad_hy, batch, 3 * hidden) for _ in range(2)]
    biases = [_plain(grad_hy, 3 * hidden) if has_bias else None for _ in range(2)]
    return *gates, _plain(grad_hy), *biases
