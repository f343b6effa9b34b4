"""The recurrences of LSTM, GRU and plain RNN layers, and their gradients: one direction of one layer, as a loop.

There are T time steps of B sequences. Gates are [T, B, G·H]: input, forget, cell, output for an LSTM; reset, update,
new for a GRU; the only one of a plain RNN. H is the hidden size, and h is [B, P], where P is H or the size that an LSTM
projects to.

Values that do not depend on h are computed for all steps at once: the products with the input before the loop, and the
gradients of the weights after the gradient's loop. A gradient's loop is linear in its carried values, so its factors
are computed before it, too. f16 and bf16 are computed in f32; states are rounded after each step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lazytpu.aten.layers.recurrent_cells import chunks, of_logistic, of_tanh, one_minus, widened
from lazytpu.aten.linalg.contractions import contract
from lazytpu.aten.pointwise.operands import full
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

    Values = Sequence[SSAValue]


@dataclass(frozen=True)
class Run:
    """h [T, B, P] after each step, the final states, and further values [T, B, H] that the gradient needs."""

    h: SSAValue
    final: Values
    saved: Values


@dataclass(frozen=True)
class Gradient:
    """Gradients [T, B, G·H] of the products with the input and with h, of the initial states, and of the projection, in
    the dtype in which cells compute."""

    input_gates: SSAValue
    hidden_gates: SSAValue
    initial: Values
    projection: SSAValue | None = None


@dataclass(frozen=True)
class Recurrence:
    """One direction of one layer. `hidden` is [G·H, P] and `projection` [P, H]; `initial` are the states, h first.
    `valid` [T, B] marks the sequences that have each step; the states of the others stay unchanged. None: all sequences
    have all steps."""

    GATES: ClassVar[int]
    "G"
    SAVED: ClassVar[int]
    "The number of values that the gradient needs beside h."
    BIAS_INSIDE: ClassVar[bool] = False
    "Whether the loop adds the bias of the product with h. Otherwise that bias is in the gates already."

    hidden: SSAValue
    bias: SSAValue | None
    projection: SSAValue | None
    initial: Values
    backwards: bool
    valid: SSAValue | None

    @abstractmethod
    def run(self, b: Builder, gates: SSAValue) -> Run:
        """All steps, from the products with the input."""

    @abstractmethod
    def gradient(self, b: Builder, h: SSAValue, saved: Values, grad: SSAValue, of_final: Values) -> Gradient:
        """Compute the gradients from the gradients of h [T, B, P] and of the final states. `h` and `saved` come from
        the run."""

    def scan(
        self, b: Builder, carried: Values, xs: Values, step: Callable[..., list[SSAValue]], reverse: bool
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        """`b.scan` over the time steps; the step also receives a row of `valid` if there is one."""
        xs = [*xs, *([] if self.valid is None else [self.valid])]
        return b.scan(carried, xs, step, shape_of(xs[0])[0], reverse)

    @staticmethod
    def kept(b: Builder, valid: Values, new: Values, old: Values) -> list[SSAValue]:
        """Select the new states, in the dtypes of the old ones, or the old states of sequences without this step."""
        new = [b.convert(x, dtype_of(y)) for x, y in zip(new, old, strict=True)]
        return [_where(b, valid[0], x, y) for x, y in zip(new, old, strict=True)] if valid else new

    def before(self, b: Builder, states: SSAValue, initial: SSAValue) -> SSAValue:
        """The state [T, B, ·] at the beginning of each step, from the states after the steps."""
        length, *widths = shape_of(states)
        if self.valid is not None:
            states = _where(b, self.valid, states, b.broadcast_to(initial, shape_of(states)))
        first, start = b.reshape(initial, (1, *widths)), int(self.backwards)
        shifted = b.slice(states, [start, 0, 0], [start + length - 1, *widths])
        return b.concatenate([shifted, first] if self.backwards else [first, shifted], 0)

    def masked(self, b: Builder, gradient: SSAValue) -> SSAValue:
        """A gradient [T, B, ·], with zeros where a step is not in a sequence."""
        return gradient if self.valid is None else _where(b, self.valid, gradient, full(b, 0, gradient))

    def from_hidden(self, b: Builder) -> Callable[[Builder, SSAValue], SSAValue]:
        """The product of h [B, P], for the loop: with a matrix that is transposed once, before it. XLA:CPU would do it
        in each step, which is 6 % of the time that an LSTM of size 128 trains for."""
        transposed = b.transpose(self.hidden, [1, 0])
        return lambda inner, h: contract(inner, h, transposed, over=((1,), (0,)))

    def to_hidden(self, b: Builder, gates: SSAValue) -> SSAValue:
        """The gradient of h [B, P] from the gradient of its product."""
        return contract(b, b.convert(gates, dtype_of(self.hidden)), self.hidden, over=((1,), (0,)))


def _where(b: Builder, condition: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
    """A choice by rows: the condition lacks the last dimension."""
    shape = shape_of(x)
    return b.select(b.broadcast_in_dim(condition, shape, range(len(shape) - 1)), x, y)


class Lstm(Recurrence):
    """c' = f·c + i·g and h' = o·tanh(c'), projected. Saves c and the gates."""

    GATES = 4
    SAVED = 5

    def run(self, b: Builder, gates: SSAValue) -> Run:
        product = self.from_hidden(b)

        def step(b: Builder, h: SSAValue, c: SSAValue, row: SSAValue, *valid: SSAValue) -> list[SSAValue]:
            i, f, g, o = chunks(b, b.add(widened(b, row), product(b, h)), 4)
            i, f, o = (b.unary("logistic", x) for x in (i, f, o))
            g = b.unary("tanh", g)
            cell = b.add(b.mul(f, widened(b, c)), b.mul(i, g))
            raw = b.mul(o, b.unary("tanh", cell))
            if self.projection is not None:
                raw = contract(b, b.convert(raw, dtype_of(h)), self.projection, over=((1,), (1,)))
            new = self.kept(b, valid, (raw, cell), (h, c))
            return [*new, *new, *(b.convert(x, dtype_of(c)) for x in (i, f, g, o))]

        final, (h, *saved) = self.scan(b, self.initial, [gates], step, self.backwards)
        return Run(h, final, saved)

    def gradient(self, b: Builder, h: SSAValue, saved: Values, grad: SSAValue, of_final: Values) -> Gradient:
        cells, *gates = saved
        i, f, g, o = (widened(b, x) for x in gates)
        old, new = widened(b, self.before(b, cells, self.initial[1])), b.unary("tanh", widened(b, cells))
        # The gradient of a gate, divided by the gradient of c', or of o·tanh(c') for the last gate.
        of_gates = of_logistic(b, g, i), of_logistic(b, old, f), of_tanh(b, i, g), of_logistic(b, new, o)
        factors, to_cell = b.concatenate(of_gates, 2), of_tanh(b, o, new)

        def step(b: Builder, of_h: SSAValue, of_c: SSAValue, *rows: SSAValue) -> list[SSAValue]:
            row, factor, to_cell, f, *valid = rows
            total = raw = b.add(of_h, widened(b, row))
            if self.projection is not None:
                raw = contract(b, b.convert(total, dtype_of(h)), self.projection, over=((1,), (0,)))
            cell = b.add(of_c, b.mul(raw, to_cell))
            of_gates = b.mul(b.concatenate([cell, cell, cell, raw], 1), factor)
            new = self.kept(b, valid, [self.to_hidden(b, of_gates), b.mul(cell, f)], [of_h, of_c])
            return [*new, of_gates, total]

        carried, rows = [widened(b, x) for x in of_final], [grad, factors, to_cell, f]
        of_initial, (of_all, totals) = self.scan(b, carried, rows, step, not self.backwards)
        of_all, of_projection = self.masked(b, of_all), None
        if self.projection is not None:
            raw, totals = (b.convert(x, dtype_of(h)) for x in (b.mul(o, new), self.masked(b, totals)))
            of_projection = contract(b, totals, raw, over=((0, 1), (0, 1)))
        return Gradient(of_all, of_all, of_initial, of_projection)


class Gru(Recurrence):
    """n = tanh(input + r·hidden) and h' = n + u·(h - n). Saves r, u, n and the hidden part of n."""

    GATES = 3
    SAVED = 4
    BIAS_INSIDE = True

    def run(self, b: Builder, gates: SSAValue) -> Run:
        product = self.from_hidden(b)

        def step(b: Builder, h: SSAValue, row: SSAValue, *valid: SSAValue) -> list[SSAValue]:
            recurrent = product(b, h)
            if self.bias is not None:
                recurrent = b.add(recurrent, b.broadcast_to(widened(b, self.bias), shape_of(recurrent)))
            (ir, iu, new), (hr, hu, hidden) = chunks(b, widened(b, row), 3), chunks(b, recurrent, 3)
            r, u = b.unary("logistic", b.add(ir, hr)), b.unary("logistic", b.add(iu, hu))
            n = b.unary("tanh", b.add(new, b.mul(r, hidden)))
            after = b.add(n, b.mul(u, b.sub(widened(b, h), n)))
            (after,) = self.kept(b, valid, [after], [h])
            return [after, after, *(b.convert(x, dtype_of(h)) for x in (r, u, n, hidden))]

        final, (h, *saved) = self.scan(b, self.initial, [gates], step, self.backwards)
        return Run(h, final, saved)

    def gradient(self, b: Builder, h: SSAValue, saved: Values, grad: SSAValue, of_final: Values) -> Gradient:
        r, u, n, hidden = (widened(b, x) for x in saved)
        old = widened(b, self.before(b, h, self.initial[0]))
        # The gradients of the gates, divided by the gradient of h'.
        of_u, of_n = of_logistic(b, b.sub(old, n), u), of_tanh(b, one_minus(b, u), n)
        of_r = of_logistic(b, b.mul(of_n, hidden), r)
        factors = b.concatenate([of_r, of_u, b.mul(of_n, r)], 2)

        def step(b: Builder, of_h: SSAValue, *rows: SSAValue) -> list[SSAValue]:
            row, factor, u, *valid = rows
            total = b.add(of_h, widened(b, row))
            through = self.to_hidden(b, b.mul(b.concatenate([total] * 3, 1), factor))
            return [*self.kept(b, valid, [b.add(through, b.mul(total, u))], [of_h]), total]

        carried = [widened(b, x) for x in of_final]
        of_initial, (totals,) = self.scan(b, carried, [grad, factors, u], step, not self.backwards)
        totals = b.concatenate([self.masked(b, totals)] * 3, 2)
        of_input = b.mul(totals, b.concatenate([of_r, of_u, of_n], 2))
        return Gradient(of_input, b.mul(totals, factors), of_initial)


class Tanh(Recurrence):
    """h' = tanh of the gate."""

    GATES = 1
    SAVED = 0

    def activated(self, b: Builder, gate: SSAValue) -> SSAValue:
        """h' from the gate."""
        return b.unary("tanh", gate)

    def slope(self, b: Builder, h: SSAValue) -> SSAValue:
        """The derivative of h' with respect to the gate, from h'."""
        return one_minus(b, b.mul(h, h))

    def run(self, b: Builder, gates: SSAValue) -> Run:
        product = self.from_hidden(b)

        def step(b: Builder, h: SSAValue, row: SSAValue, *valid: SSAValue) -> list[SSAValue]:
            after = self.activated(b, b.add(widened(b, row), product(b, h)))
            return self.kept(b, valid, [after], [h]) * 2

        final, (h,) = self.scan(b, self.initial, [gates], step, self.backwards)
        return Run(h, final, [])

    def gradient(self, b: Builder, h: SSAValue, saved: Values, grad: SSAValue, of_final: Values) -> Gradient:
        def step(b: Builder, of_h: SSAValue, *rows: SSAValue) -> list[SSAValue]:
            row, slope, *valid = rows
            of_gate = b.mul(b.add(of_h, widened(b, row)), slope)
            return [*self.kept(b, valid, [self.to_hidden(b, of_gate)], [of_h]), of_gate]

        carried, rows = [widened(b, x) for x in of_final], [grad, self.slope(b, widened(b, h))]
        of_initial, (of_gates,) = self.scan(b, carried, rows, step, not self.backwards)
        of_gates = self.masked(b, of_gates)
        return Gradient(of_gates, of_gates, of_initial)


class Relu(Tanh):
    """h' = relu of the gate."""

    def activated(self, b: Builder, gate: SSAValue) -> SSAValue:
        return b.max(gate, full(b, 0, gate))

    def slope(self, b: Builder, h: SSAValue) -> SSAValue:
        return b.convert(b.compare("GT", h, full(b, 0, h)), dtype_of(h))


RECURRENCES: dict[str, type[Recurrence]] = {"lstm": Lstm, "gru": Gru, "tanh": Tanh, "relu": Relu}
