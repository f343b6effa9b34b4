"""Recurrent layers as one op forward and one backward: a stack of layers, each in one direction or in both.

The input is [T, B, I]: T time steps of B sequences, or rows [T·B, I] if they are packed, with `places` (packing.py).
For each direction of each layer, the weights are, in torch's order: [G·H, I] for the input, [G·H, P] for h, their
biases [G·H] if there are any, and the projection [P, H] if there is one. Initial and final states are [layers ·
directions, B, ·]. `masks`, [layers - 1, T, B, directions · P] or [layers - 1, T·B, directions · P], in the order of
time steps, multiply the values that one layer passes to the next: dropout.

For its gradient a stack saves one array of one dimension, `reserve`, which the backward op slices. Within one program
that costs nothing: slices of a concatenation are its operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from lazytpu.aten.layers.packing import Packing
from lazytpu.aten.layers.recurrences import RECURRENCES, Gradient
from lazytpu.aten.layers.recurrent_cells import chunks, widened
from lazytpu.aten.linalg.contractions import contract
from lazytpu.aten.pointwise.operands import wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@dataclass(frozen=True)
class Weights:
    """The weights of one direction of one layer."""

    input: SSAValue
    hidden: SSAValue
    input_bias: SSAValue | None
    hidden_bias: SSAValue | None
    projection: SSAValue | None

    @staticmethod
    def of(weights: Sequence[SSAValue]) -> Weights:
        """From all of them, in torch's order."""
        biased, projected = len(weights) > 3, len(weights) % 2 == 1
        input_bias, hidden_bias = weights[2:4] if biased else (None, None)
        return Weights(weights[0], weights[1], input_bias, hidden_bias, weights[-1] if projected else None)


class Stack:
    """The layers of one op. Lists have one entry for each direction of each layer."""

    def __init__(
        self,
        b: Builder,
        weights: Sequence[SSAValue],
        initial: Sequence[SSAValue],
        mode: str,
        bidirectional: bool,
        places: SSAValue | None,
    ):
        kind, self.packing = RECURRENCES[mode], Packing(b, places)
        count = shape_of(initial[0])[0]
        every = len(weights) // count
        self.weights = [Weights.of(weights[i * every : (i + 1) * every]) for i in range(count)]
        self.sides = 2 if bidirectional else 1
        self.layers = count // self.sides
        valid = self.packing.valid()
        self.recurrences = [
            kind(
                w.hidden,
                w.hidden_bias,
                w.projection,
                [_row(b, state, i) for state in initial],
                backwards=i % self.sides == 1,
                valid=valid,
            )
            for i, w in enumerate(self.weights)
        ]

    def of_layer(self, layer: int) -> range:
        """The numbers of a layer's directions."""
        return range(layer * self.sides, (layer + 1) * self.sides)

    def gates(self, b: Builder, i: int, x: SSAValue) -> SSAValue:
        """The products of all time steps with the weights of the input, and the biases that are added outside of the
        loop."""
        w = self.weights[i]
        gates = contract(b, x, w.input, over=((2,), (1,)))
        for bias in (w.input_bias, None if self.recurrences[i].BIAS_INSIDE else w.hidden_bias):
            if bias is not None:
                gates = b.add(gates, b.broadcast_to(widened(b, bias), shape_of(gates)))
        return b.convert(gates, dtype_of(x))

    def masked(self, b: Builder, layer: int, x: SSAValue, masks: SSAValue | None) -> SSAValue:
        """The input of `layer` from the output of the layer before it, or the other way round their gradients."""
        if masks is None:
            return x
        mask = self.packing.in_steps(b, _row(b, masks, layer - 1))
        return b.convert(b.mul(b.convert(x, dtype_of(mask)), mask), dtype_of(x))

    def of_weights(self, b: Builder, i: int, x: SSAValue, h: SSAValue, gradient: Gradient) -> list[SSAValue]:
        """The gradients of the weights, in torch's order, by products over all steps of all sequences."""
        w, over = self.weights[i], ((0, 1), (0, 1))
        of_input, of_hidden = gradient.input_gates, gradient.hidden_gates
        recurrence = self.recurrences[i]
        before = recurrence.before(b, h, recurrence.initial[0])
        pairs = [(w.input, contract(b, b.convert(of_input, dtype_of(x)), x, over=over))]
        pairs.append((w.hidden, contract(b, b.convert(of_hidden, dtype_of(x)), before, over=over)))
        for bias, of_gates in ((w.input_bias, of_input), (w.hidden_bias, of_hidden)):
            if bias is not None:
                pairs.append((bias, b.reduce("add", of_gates, [0, 1])))
        if w.projection is not None and gradient.projection is not None:
            pairs.append((w.projection, gradient.projection))
        return [b.convert(value, dtype_of(weight)) for weight, value in pairs]


def _row(b: Builder, x: SSAValue, i: int) -> SSAValue:
    """x[i]"""
    _, *row_shape = shape_of(x)
    return b.reshape(b.slice(x, [i, *(0 for _ in row_shape)], [i + 1, *row_shape]), row_shape)


def _stacked(b: Builder, values: Sequence[SSAValue]) -> SSAValue:
    return b.concatenate([b.reshape(value, (1, *shape_of(value))) for value in values], 0)


@rule("lazytpu.recurrent.default")
def recurrent(
    b: Builder,
    input: SSAValue,
    weights: list[SSAValue],
    hx: SSAValue,
    cx: SSAValue | None,
    masks: SSAValue | None,
    places: SSAValue | None,
    mode: str,
    bidirectional: bool,
) -> tuple[SSAValue | None, ...]:
    """(output, last h, last c of an LSTM, reserve)."""
    stack = Stack(b, weights, [hx] if cx is None else [hx, cx], mode, bidirectional, places)
    y = stack.packing.unpack(b, input)
    final: list[Sequence[SSAValue]] = []
    saved: list[SSAValue] = []
    for layer in range(stack.layers):
        x = stack.masked(b, layer, y, masks) if layer else y
        runs = [stack.recurrences[i].run(b, stack.gates(b, i, x)) for i in stack.of_layer(layer)]
        y = b.concatenate([run.h for run in runs], 2)
        final += [run.final for run in runs]
        saved += [value for run in runs for value in run.saved]
        if layer + 1 < stack.layers:
            saved.append(y)
    hy, *cy = (_stacked(b, states) for states in zip(*final, strict=True))
    flat = [b.reshape(value, (prod(shape_of(value)),)) for value in saved]
    reserve = b.concatenate(flat, 0) if flat else b.constant(0, dtype_of(y), (0,))
    return stack.packing.pack(b, y), hy, cy[0] if cy else None, reserve


class _Reserve:
    """The saved values of a stack, read in the order of writing."""

    def __init__(self, b: Builder, flat: SSAValue):
        self.b, self.flat, self.at = b, flat, 0

    def take(self, *shape: int) -> SSAValue:
        start, self.at = self.at, self.at + prod(shape)
        return self.b.reshape(self.b.slice(self.flat, [start], [self.at]), shape)


@rule("lazytpu.recurrent_backward.default")
def recurrent_backward(
    b: Builder,
    grad_output: SSAValue | None,
    grad_hy: SSAValue | None,
    grad_cy: SSAValue | None,
    input: SSAValue,
    weights: list[SSAValue],
    hx: SSAValue,
    cx: SSAValue | None,
    masks: SSAValue | None,
    places: SSAValue | None,
    output: SSAValue,
    reserve: SSAValue,
    mode: str,
    bidirectional: bool,
) -> tuple[Any, ...]:
    """Gradients of (input, weights, hx, cx)."""
    initial = [hx] if cx is None else [hx, cx]
    stack = Stack(b, weights, initial, mode, bidirectional, places)
    x, y = stack.packing.unpack(b, input), stack.packing.unpack(b, output)
    length, batch, width = shape_of(y)
    kind = RECURRENCES[mode]
    hidden = shape_of(weights[0])[0] // kind.GATES
    inputs, outputs = [x], []
    saved: list[list[SSAValue]] = []
    reserved = _Reserve(b, reserve)
    for layer in range(stack.layers):
        for _ in stack.of_layer(layer):
            saved.append([reserved.take(length, batch, hidden) for _ in range(kind.SAVED)])
        last = layer + 1 == stack.layers
        outputs.append(y if last else reserved.take(length, batch, width))
        if not last:
            inputs.append(stack.masked(b, layer + 1, outputs[layer], masks))
    compute, dtype = wide(dtype_of(y)), dtype_of(y)
    final = [(x, grad) for x, grad in ((hx, grad_hy), (cx, grad_cy)) if x is not None]
    of_final = [b.constant(0, compute, shape_of(x)) if grad is None else grad for x, grad in final]
    of_y = b.constant(0, compute, shape_of(y)) if grad_output is None else stack.packing.unpack(b, grad_output)
    of_initial: dict[int, Sequence[SSAValue]] = {}
    of_weights: dict[int, list[SSAValue]] = {}
    for layer in reversed(range(stack.layers)):
        x, of_x = inputs[layer], []
        sides = zip(
            stack.of_layer(layer), chunks(b, outputs[layer], stack.sides), chunks(b, of_y, stack.sides), strict=True
        )
        for i, h, of_h in sides:
            ends = [_row(b, grad, i) for grad in of_final]
            gradient = stack.recurrences[i].gradient(b, h, saved[i], of_h, ends)
            of_initial[i] = gradient.initial
            of_weights[i] = stack.of_weights(b, i, x, h, gradient)
            gates = b.convert(gradient.input_gates, dtype)
            of_x.append(contract(b, gates, stack.weights[i].input, over=((2,), (0,))))
        of_y = of_x[0] if len(of_x) == 1 else b.add(*of_x)
        if layer:
            of_y = stack.masked(b, layer, of_y, masks)
    count = range(len(of_initial))
    states = [b.convert(_stacked(b, values), dtype) for values in zip(*(of_initial[i] for i in count), strict=True)]
    of_input = b.convert(stack.packing.pack(b, of_y), dtype)
    return of_input, [w for i in count for w in of_weights[i]], states[0], states[1] if cx is not None else None
