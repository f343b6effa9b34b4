"""The pointwise parts of LSTM and GRU cells, and their gradients, with the formulas of ATen/native/cuda/RNN.cu.

Gates are [batch, gates·hidden]: input, forget, cell, output for an LSTM; reset, update, new for a GRU. f16 and bf16 are
computed in f32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full, result_type, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def chunks(b: Builder, x: SSAValue, count: int) -> list[SSAValue]:
    """`count` equal parts of the last dimension."""
    *outer, size = shape_of(x)
    width, zeros = size // count, [0] * len(outer)
    return [b.slice(x, [*zeros, i * width], [*outer, (i + 1) * width]) for i in range(count)]


def widened(b: Builder, x: SSAValue, other: SSAValue | None = None) -> SSAValue:
    """x in the dtype in which cells compute; with `other`, in the common dtype of both."""
    return b.convert(x, wide(dtype_of(x) if other is None else result_type(x, other)))


def _biased(b: Builder, gates: SSAValue, bias: SSAValue | None) -> SSAValue:
    gates = widened(b, gates)
    return gates if bias is None else b.add(gates, b.broadcast_to(widened(b, bias), shape_of(gates)))


def one_minus(b: Builder, x: SSAValue) -> SSAValue:
    """1 - x."""
    return b.sub(full(b, 1, x), x)


def of_logistic(b: Builder, grad: SSAValue, y: SSAValue) -> SSAValue:
    """The gradient of x, where y = logistic(x) and `grad` is the gradient of y."""
    return b.mul(grad, b.mul(one_minus(b, y), y))


def of_tanh(b: Builder, grad: SSAValue, y: SSAValue) -> SSAValue:
    """The gradient of x, where y = tanh(x) and `grad` is the gradient of y."""
    return b.mul(grad, one_minus(b, b.mul(y, y)))


@rule("aten._thnn_fused_lstm_cell.default")
def lstm_cell(
    b: Builder,
    input_gates: SSAValue,
    hidden_gates: SSAValue,
    cx: SSAValue,
    input_bias: SSAValue | None = None,
    hidden_bias: SSAValue | None = None,
) -> tuple[SSAValue, ...]:
    """(hy, cy, activated gates): cy = f·cx + i·g and hy = o·tanh(cy)."""
    gates = b.add(_biased(b, input_gates, input_bias), _biased(b, hidden_gates, hidden_bias))
    dtype = result_type(input_gates, cx)
    i, f, g, o = chunks(b, b.convert(gates, wide(dtype)), 4)
    i, f, o = (b.unary("logistic", x) for x in (i, f, o))
    g = b.unary("tanh", g)
    cy = b.add(b.mul(f, widened(b, cx, input_gates)), b.mul(i, g))
    hy = b.mul(o, b.unary("tanh", cy))
    return b.convert(hy, dtype), b.convert(cy, dtype), b.convert(b.concatenate([i, f, g, o], 1), dtype_of(input_gates))


@rule("aten._thnn_fused_lstm_cell_backward_impl.default")
def lstm_cell_backward(
    b: Builder,
    grad_hy: SSAValue | None,
    grad_cy: SSAValue | None,
    cx: SSAValue,
    cy: SSAValue,
    workspace: SSAValue,
    has_bias: bool,
) -> tuple[SSAValue | None, ...]:
    """Gradients of (the gates, cx, the bias)."""
    i, f, g, o = chunks(b, widened(b, workspace, cx), 4)
    old, new = widened(b, cx, workspace), b.unary("tanh", widened(b, cy, workspace))
    of_hy = full(b, 0, new) if grad_hy is None else widened(b, grad_hy, cy)
    of_cy = of_tanh(b, b.mul(of_hy, o), new)
    if grad_cy is not None:
        of_cy = b.add(of_cy, widened(b, grad_cy, cy))
    gates = b.concatenate(
        [
            of_logistic(b, b.mul(of_cy, g), i),
            of_logistic(b, b.mul(of_cy, old), f),
            of_tanh(b, b.mul(of_cy, i), g),
            of_logistic(b, b.mul(of_hy, new), o),
        ],
        1,
    )
    dtype = dtype_of(workspace)
    bias = b.convert(b.reduce("add", gates, [0]), dtype) if has_bias else None
    return b.convert(gates, dtype), b.convert(b.mul(of_cy, f), dtype_of(cx)), bias


@rule("aten._thnn_fused_gru_cell.default")
def gru_cell(
    b: Builder,
    input_gates: SSAValue,
    hidden_gates: SSAValue,
    hx: SSAValue,
    input_bias: SSAValue | None = None,
    hidden_bias: SSAValue | None = None,
) -> tuple[SSAValue, ...]:
    """(hy, [r, u, n, hx, the hidden part of n]): n = tanh(input + r·hidden) and hy = n + u·(hx - n)."""
    ir, iu, new = chunks(b, _biased(b, input_gates, input_bias), 3)
    hr, hu, hidden = chunks(b, _biased(b, hidden_gates, hidden_bias), 3)
    r, u = b.unary("logistic", b.add(ir, hr)), b.unary("logistic", b.add(iu, hu))
    n = b.unary("tanh", b.add(new, b.mul(r, hidden)))
    old = widened(b, hx)
    hy = b.add(n, b.mul(u, b.sub(old, n)))
    workspace = b.concatenate([r, u, n, old, hidden], 1)
    return b.convert(hy, dtype_of(hx)), b.convert(workspace, dtype_of(hx))


@rule("aten._thnn_fused_gru_cell_backward.default")
def gru_cell_backward(
    b: Builder, grad_hy: SSAValue, workspace: SSAValue, has_bias: bool
) -> tuple[SSAValue | None, ...]:
    """Gradients of (input gates, hidden gates, hx, the two biases)."""
    r, u, n, old, hidden = chunks(b, widened(b, workspace), 5)
    grad = widened(b, grad_hy)
    of_u = of_logistic(b, b.mul(grad, b.sub(old, n)), u)
    of_n = of_tanh(b, b.mul(grad, one_minus(b, u)), n)
    of_r = of_logistic(b, b.mul(of_n, hidden), r)
    gates = b.concatenate([of_r, of_u, of_n], 1), b.concatenate([of_r, of_u, b.mul(of_n, r)], 1)
    dtype = dtype_of(workspace)
    biases = [b.convert(b.reduce("add", x, [0]), dtype) if has_bias else None for x in gates]
    return *(b.convert(x, dtype) for x in gates), b.convert(b.mul(grad, u), dtype_of(grad_hy)), *biases
