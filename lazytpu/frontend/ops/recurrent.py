"""LSTM, GRU and RNN layers as one record, forward and backward.

torch asks a device in C++ whether it has fused layers, and unrolls them over time otherwise. So the functions
themselves are replaced. Supported calls go to torch's op for other devices' layers, `_cudnn_rnn`, which has a
derivative; all others go to torch's own function. Our own ops, with only the used arguments and results, are recorded
in place of that op and its derivative. A training step has 2 records for an LSTM, where 2 layers over 32 time steps had
800.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.ops.first_hidden import first_hidden
from lazytpu.frontend.ops.packing import first_of, places_of, rows_of
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.torch_private import below_autograd, by_torch, is_transformed

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
_OPERANDS = "Tensor input, Tensor[] weights, Tensor hx, Tensor? cx, Tensor? masks, Tensor? places"
_KIND = "str mode, bool bidirectional"
LIBRARY.define(f"recurrent({_OPERANDS}, {_KIND}) -> (Tensor output, Tensor hy, Tensor cy, Tensor reserve)")
LIBRARY.define(
    f"recurrent_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, {_OPERANDS}, Tensor output, "
    f"Tensor reserve, {_KIND}) -> (Tensor input, Tensor[] weights, Tensor hx, Tensor cx)"
)
OPS: Any = torch.ops.lazytpu
aten: Any = torch.ops.aten

MODES = ("relu", "tanh", "lstm", "gru")
"Indexed by the mode numbers of `_cudnn_rnn`."
FUNCTIONS: dict[str, Any] = {"relu": aten.rnn_relu, "tanh": aten.rnn_tanh, "lstm": aten.lstm, "gru": aten.gru}
GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}
SAVED = {"relu": 0, "tanh": 0, "lstm": 5, "gru": 4}
"Elements saved for the gradient per time step of a layer, besides its output, in multiples of the hidden size."
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _layers(mode: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a mode: for [T, B, I], and for packed sequences."""
    function = FUNCTIONS[mode]

    def of_input(
        input: Tensor,
        hx: Any,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = list(hx) if mode == "lstm" else [hx]
        settings = (has_biases, num_layers, dropout, train, bidirectional)
        steps = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
        if not _fits(mode, steps, [], states, params, *settings):
            return _unroll(function.input, input, hx, params, *settings, batch_first)
        output, *final = _run(mode, steps, [], None, first_hidden(states), params, *settings)
        return output.transpose(0, 1) if batch_first else output, *final

    def of_data(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Any,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        states = list(hx) if mode == "lstm" else [hx]
        settings = (has_biases, num_layers, dropout, train, bidirectional)
        sizes = batch_sizes.tolist() if batch_sizes.dim() == 1 and batch_sizes.device.type == "cpu" else []
        if not sizes or not _fits(mode, data, sizes, states, params, *settings):
            return _unroll(function.data, data, batch_sizes, hx, params, *settings)
        return _run(mode, data, sizes, places_of(batch_sizes, sizes), first_hidden(states), params, *settings)

    return {f"{function.__name__}.input": of_input, f"{function.__name__}.data": of_data}


def _fits(
    mode: str,
    input: Tensor,
    batch_sizes: list[int],
    states: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> bool:
    """Return whether our op supports these arguments.

    It does not support arguments that torch rejects, tensors without elements, forward mode, and the transforms of
    torch.func, for which torch has no derivative of the op.
    """
    if is_transformed():
        return False
    tensors, sides = [input, *states, *params], 2 if bidirectional else 1
    if any(t.dtype != input.dtype or t.device != input.device or not t.numel() for t in tensors):
        return False
    if input.dtype not in _DTYPES or len(states) != (2 if mode == "lstm" else 1) or any(t.dim() != 3 for t in states):
        return False
    if input.dim() != (2 if batch_sizes else 3) or not 0 <= dropout <= 1:
        return False
    if batch_sizes and (sum(batch_sizes) != len(input) or batch_sizes != sorted(batch_sizes, reverse=True)):
        return False
    width, hidden = states[0].shape[2], states[-1].shape[2]
    batch = batch_sizes[0] if batch_sizes else input.shape[1]
    if any(t.shape[:2] != (num_layers * sides, batch) for t in states):
        return False
    return [tuple(w.shape) for w in params] == _weights(
        GATES[mode] * hidden, input.shape[-1], hidden, width, has_biases, num_layers, sides
    )


def _unroll(op: Any, *args: Any) -> Any:
    """Call torch's own function, unrolled over time; in Python where the C++ version's fused cells have no
    derivative."""
    return op.decompose(*args) if is_transformed() else by_torch(op, *args)


def _weights(
    gates: int, inputs: int, hidden: int, width: int, biases: bool, layers: int, sides: int
) -> list[tuple[int, ...]]:
    """Return the shapes of all weights."""
    shapes: list[tuple[int, ...]] = []
    for layer in range(layers):
        direction: list[tuple[int, ...]] = [(gates, sides * width if layer else inputs), (gates, width)]
        direction += [(gates,), (gates,)] if biases else []
        direction += [(width, hidden)] if width != hidden else []
        shapes += direction * sides
    return shapes


def _run(
    mode: str,
    input: Tensor,
    batch_sizes: list[int],
    places: Tensor | None,
    states: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    """Return (output, last h, last c of an LSTM). `places` are the positions of packed sequences."""
    sides, width, hidden = 2 if bidirectional else 1, states[0].shape[2], states[-1].shape[2]
    masks = None
    if train and dropout and num_layers > 1:
        dtype = input.dtype if input.dtype in (torch.float32, torch.float64) else torch.float32
        steps = input.shape[:-1] if places is None else places[0].flatten().shape
        shape = (num_layers - 1, *steps, sides * width)
        masks = aten.native_dropout(torch.ones(shape, dtype=dtype, device=input.device), dropout, True)[0]
    every, projected = len(params) // (num_layers * sides), width if width != hidden else 0
    sizes = (MODES.index(mode), hidden, projected, num_layers, False, dropout, train, bidirectional, batch_sizes)
    cx = states[1] if mode == "lstm" else None
    return aten._cudnn_rnn(input, params, every, places, states[0], cx, *sizes, masks)[: len(states) + 1]


def forward(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The kernel of aten::_cudnn_rnn, as `_run` calls it: (output, hy, cy, reserve, places).

    `weight_buf` has the positions of packed sequences, because torch saves this argument for the gradient.
    """
    rows = input if weight_buf is None else rows_of(input, weight_buf)
    call = kernel(OPS.recurrent.default).call
    output, *states = call(rows, weight, hx, cx, dropout_state, weight_buf, MODES[mode], bidirectional)
    return output if weight_buf is None else first_of(output, len(input)), *states, weight_buf


def backward(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
    reserve: Tensor,
    output_mask: list[bool],
) -> tuple[Any, ...]:
    """The kernel of aten::_cudnn_rnn_backward: gradients of (input, hx, cx, weight)."""
    rows = [input, output, grad_output]
    if weight_buf is not None:
        rows = [None if t is None else rows_of(t, weight_buf) for t in rows]
    operands = (rows[0], weight, hx, cx, dropout_state, weight_buf, rows[1], reserve)
    call = kernel(OPS.recurrent_backward.default).call
    of_rows, of_weights, of_hx, of_cx = call(rows[2], grad_hy, grad_cy, *operands, MODES[mode], bidirectional)
    of_input = of_rows if weight_buf is None else first_of(of_rows, len(input))
    return of_input, of_hx, of_cx, of_weights


def derivative(*args: Any) -> tuple[Any, ...]:
    """The kernel of aten::_cudnn_rnn_backward that autograd sees.

    If the gradient is to be differentiated again, the layers run once more, unrolled over time: no other device has the
    derivative of that op, and torch no formula.
    """
    input, weight, _, _, hx, cx, _, *grads = args[:10]
    tensors = [t for t in (input, hx, cx, *weight, *grads) if t is not None]
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        with below_autograd():
            return aten._cudnn_rnn_backward(*args)
    return unrolled_backward(*args)


def unrolled_backward(*args: Any) -> tuple[Any, ...]:
    """Compute aten::_cudnn_rnn_backward by ops that have derivatives and batching rules; torch has neither for this op.

    Under vmap, only the gradients of the results are batched (`is_grads_batched`): a transformed forward pass is
    unrolled already.
    """
    input, weight, _, _, hx, cx, _, *grads = args[:10]
    mode, bidirectional, batch_sizes, masks = MODES[args[10]], args[17], args[18], args[19]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # distinct leaves, since these may be one tensor
        leaves = [None if t is None else t.view_as(t) for t in (input, hx, cx, *weight)]
        results = _unrolled(mode, leaves[0], leaves[1], leaves[2], leaves[3:], masks, bidirectional, batch_sizes)
    pairs = [(y, grad) for y, grad in zip(results, grads, strict=False) if grad is not None]
    inputs = [t for t in leaves if t is not None and t.requires_grad]
    outputs, cotangents = zip(*pairs, strict=True)
    computed = iter(torch.autograd.grad(outputs, inputs, cotangents, create_graph=again, materialize_grads=True))
    of_input, of_hx, of_cx = (next(computed) if t is not None and t.requires_grad else None for t in leaves[:3])
    of_weights = [next(computed) if t.requires_grad else torch.zeros_like(t) for t in weight]
    return of_input, of_hx, of_cx, of_weights


def _unrolled(
    mode: str,
    y: Any,
    hx: Any,
    cx: Any,
    weights: Sequence[Any],
    masks: Tensor | None,
    bidirectional: bool,
    batch_sizes: list[int],
) -> list[Tensor]:
    """Return (output, last h, last c of an LSTM) by torch's functions, layer by layer, with dropout by `masks`."""
    sides, final = 2 if bidirectional else 1, list[Any]()
    layers = len(hx) // sides
    every = len(weights) // layers
    for layer in range(layers):
        if layer and masks is not None:
            y = (y * _packed(masks[layer - 1], batch_sizes)).to(y.dtype)
        at = slice(layer * sides, (layer + 1) * sides)
        states = hx[at] if cx is None else [hx[at], cx[at]]
        params = weights[layer * every : (layer + 1) * every]
        settings = (states, params, every // sides > 3, 1, 0.0, False, bidirectional)
        if batch_sizes:
            y, *last = _unroll(FUNCTIONS[mode].data, y, torch.tensor(batch_sizes), *settings)
        else:
            y, *last = _unroll(FUNCTIONS[mode].input, y, *settings, False)
        final.append(last)
    return [y, *(torch.cat(state) for state in zip(*final, strict=True))]


def _packed(mask: Tensor, batch_sizes: list[int]) -> Tensor:
    """Return the mask of packed values, from a mask with an entry for each time step of each sequence."""
    if not batch_sizes:
        return mask
    places = [t * batch_sizes[0] + i for t, size in enumerate(batch_sizes) for i in range(size)]
    return mask.index_select(0, torch.tensor(places, device=mask.device))


@override("lazytpu.recurrent.default")
def _recurrent(
    input: Tensor, hx: Tensor, cx: Tensor | None, mode: str, bidirectional: bool, **unused: Any
) -> tuple[Tensor | None, ...]:
    count, _, width = hx.shape
    sides, hidden = 2 if bidirectional else 1, (hx if cx is None else cx).shape[2]
    saved = input.shape[:-1].numel() * (count * SAVED[mode] * hidden + (count - sides) * width)
    output = input.new_empty((*input.shape[:-1], sides * width))
    return output, hx.new_empty(hx.shape), None if cx is None else cx.new_empty(cx.shape), input.new_empty(saved)


@override("lazytpu.recurrent_backward.default")
def _recurrent_backward(
    input: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor | None, **unused: Any
) -> tuple[Any, ...]:
    of_input, of_hx, of_cx, *of_weights = (
        None if t is None else t.new_empty(t.shape) for t in (input, hx, cx, *weights)
    )
    return of_input, of_weights, of_hx, of_cx


@override("aten._cudnn_rnn.default")
def _rnn(
    input: Tensor, weight_buf: Tensor | None, hx: Tensor, cx: Tensor | None, mode: int, bidirectional: bool, **_: Any
) -> tuple[Tensor | None, ...]:
    """For fake tensors."""
    return *_recurrent(input, hx, cx, MODES[mode], bidirectional), weight_buf


@override("aten._cudnn_rnn_backward.default")
def _rnn_backward(
    input: Tensor, weight: list[Tensor], hx: Tensor, cx: Tensor | None, output_mask: list[bool], **unused: Any
) -> tuple[Any, ...]:
    """For fake tensors."""
    of_input, of_weights, of_hx, of_cx = _recurrent_backward(input, weight, hx, cx)
    return of_input, of_hx, of_cx, of_weights


KERNELS: dict[str, Any] = {"_cudnn_rnn": forward, "_cudnn_rnn_backward": backward}
DERIVATIVES: dict[str, Any] = {"_cudnn_rnn_backward": derivative}
BATCHED: dict[str, Any] = {"_cudnn_rnn_backward": unrolled_backward}
COMPOSITES: dict[str, Any] = {name: function for mode in MODES for name, function in _layers(mode).items()}
