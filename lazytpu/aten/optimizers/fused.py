"""Fused optimizer steps, with the formulas of ATen/native/cpu/Fused{SGD,Adam,Adagrad}Kernel.cpp.

Hyperparameters are run-time numbers, so a schedule recompiles nothing. The CPU combines them in double. Here they are
0-d f64, combined by sums and products only (all that a TPU does well in f64), and rounded once to the dtype in which
the step computes: f32, or f64 for f64 parameters. Each rule returns the new values of the lists in the order of the
schema; gradients change only if they are unscaled. A step with found_inf == 1 changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from lazytpu.aten.pointwise.operands import Operand, full, number, wide
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

ADAM_NUMBERS = ("lr", "beta1", "beta2", "weight_decay", "eps")
SGD_NUMBERS = ("lr", "weight_decay", "momentum", "dampening")
ADAGRAD_NUMBERS = ("lr", "lr_decay", "weight_decay", "eps")

Lists = tuple[list[SSAValue], ...]


def double(b: Builder, value: Operand) -> SSAValue:
    """A hyperparameter as 0-d f64."""
    return number(b, value, "f64") if isinstance(value, Scalar) else b.convert(b.reshape(value, ()), "f64")


def complement(b: Builder, value: Operand) -> SSAValue:
    """1 - value, as 0-d f64."""
    return b.sub(b.constant(1.0, "f64"), double(b, value))


def is_zero(value: Operand) -> bool:
    """Whether a number is known to be 0, so that its term can be left out."""
    return isinstance(value, Scalar) and value.value is not None and value.value == 0


@dataclass
class Element:
    """The step of one parameter: the dtype in which it computes, and the parameter's shape."""

    b: Builder
    dtype: str
    shape: tuple[int, ...]

    def wide(self, x: SSAValue) -> SSAValue:
        """A tensor in the step's dtype."""
        return self.b.convert(x, self.dtype)

    def spread(self, value: SSAValue) -> SSAValue:
        """A 0-d number in the step's dtype, broadcast to the parameter's shape."""
        return self.b.broadcast_to(self.b.convert(value, self.dtype), self.shape)

    def times(self, x: SSAValue, value: SSAValue) -> SSAValue:
        """x times a 0-d number."""
        return self.b.mul(x, self.spread(value))

    def gradient(self, grad: SSAValue, grad_scale: SSAValue | None, maximize: bool = False) -> SSAValue:
        """The gradient, divided by the loss scale, and negated to maximize the loss."""
        g = self.wide(grad)
        if grad_scale is not None:
            g = self.b.div(g, self.spread(self.b.reshape(grad_scale, ())))
        return self.b.neg(g) if maximize else g

    def penalized(self, g: SSAValue, x: SSAValue, weight_decay: Operand) -> SSAValue:
        """The gradient g at x plus the gradient of the penalty weight_decay x²/2."""
        return g if is_zero(weight_decay) else self.b.add(g, self.times(x, double(self.b, weight_decay)))


def element(b: Builder, param: SSAValue) -> Element:
    """The `Element` of one parameter."""
    return Element(b, wide(dtype_of(param)), shape_of(param))


def stored(b: Builder, found_inf: SSAValue | None, old: SSAValue, new: SSAValue) -> SSAValue:
    """The tensor's value after the step: `new` in its dtype, or `old` if infinities were found."""
    new = b.convert(new, dtype_of(old))
    if found_inf is None:
        return new
    flag = b.reshape(found_inf, ())
    return b.select(b.compare("EQ", flag, full(b, 1, flag)), old, new)


def final_gradients(
    b: Builder, grads: list[SSAValue], found_inf: SSAValue | None, grad_scale: SSAValue | None
) -> list[SSAValue]:
    """The gradients after the step: unscaled if there is a loss scale."""
    if grad_scale is None:
        return grads
    return [stored(b, found_inf, g, element(b, g).gradient(g, grad_scale)) for g in grads]


def bias_correction(b: Builder, beta: Operand, step: SSAValue, dtype: str) -> SSAValue:
    """1 - beta^step as 0-d `dtype`.

    Computed as -expm1(step * log1p(beta - 1)), with beta - 1 from f64. In f32 this is accurate to a few 1e-7 for every
    step, where 1 - pow(0.999, 1) would be off by 3e-5.
    """
    rate = b.unary("log1p", b.convert(b.neg(complement(b, beta)), dtype))
    return b.neg(b.unary("expm1", b.mul(b.convert(b.reshape(step, ()), dtype), rate)))


@dataclass
class Adam:
    """The hyperparameters of one Adam or AdamW step."""

    lr: Operand
    beta1: Operand
    beta2: Operand
    weight_decay: Operand
    eps: Operand
    maximize: bool
    decoupled: bool
    "AdamW: weight decay shrinks the parameter instead of being added to the gradient."

    def step(
        self,
        b: Builder,
        param: SSAValue,
        grad: SSAValue,
        average: SSAValue,
        square: SSAValue,
        largest: SSAValue | None,
        step: SSAValue,
        grad_scale: SSAValue | None,
    ) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue | None]:
        """The new parameter, average, square and largest square, in the step's dtype."""
        e = element(b, param)
        x, g = e.wide(param), e.gradient(grad, grad_scale, self.maximize)
        if not self.decoupled:
            g = e.penalized(g, x, self.weight_decay)
        elif not is_zero(self.weight_decay):
            shrink = b.mul(double(b, self.lr), double(b, self.weight_decay))
            x = e.times(x, b.sub(b.constant(1.0, "f64"), shrink))
        # average.lerp_(g, 1 - beta1)
        m = e.wide(average)
        m = b.add(m, e.times(b.sub(g, m), complement(b, self.beta1)))
        decayed = e.times(e.wide(square), double(b, self.beta2))
        v = b.add(decayed, e.times(b.mul(g, g), complement(b, self.beta2)))
        maximum = None if largest is None else b.max(e.wide(largest), v)
        correction1 = bias_correction(b, self.beta1, step, e.dtype)
        correction2 = b.sqrt(bias_correction(b, self.beta2, step, e.dtype))
        root = b.div(b.sqrt(v if maximum is None else maximum), e.spread(correction2))
        denominator = b.add(root, e.spread(double(b, self.eps)))
        size = b.div(b.convert(double(b, self.lr), e.dtype), correction1)
        return b.sub(x, b.div(e.times(m, size), denominator)), m, v, maximum


def _adam(
    b: Builder,
    decoupled: bool,
    self: list[SSAValue],
    grads: list[SSAValue],
    exp_avgs: list[SSAValue],
    exp_avg_sqs: list[SSAValue],
    max_exp_avg_sqs: list[SSAValue],
    state_steps: list[SSAValue],
    amsgrad: bool,
    grad_scale: SSAValue | None,
    found_inf: SSAValue | None,
    **numbers: Any,
) -> Lists:
    adam = Adam(decoupled=decoupled, **numbers)
    new: Lists = ([], [], [], [])
    for i, param in enumerate(self):
        largest = max_exp_avg_sqs[i] if amsgrad else None
        old = (param, exp_avgs[i], exp_avg_sqs[i], largest)
        results = adam.step(b, param, grads[i], exp_avgs[i], exp_avg_sqs[i], largest, state_steps[i], grad_scale)
        for values, before, after in zip(new, old, results, strict=True):
            if before is not None and after is not None:
                values.append(stored(b, found_inf, before, after))
    params, averages, squares, tops = new
    gradients = final_gradients(b, grads, found_inf, grad_scale)
    return params, gradients, averages, squares, tops if amsgrad else max_exp_avg_sqs


@rule("aten._fused_adam.default", "aten._fused_adam.tensor_lr", numbers=ADAM_NUMBERS)
def fused_adam(b: Builder, **arguments: Any) -> Lists:
    """One Adam step of every parameter (https://arxiv.org/abs/1412.6980)."""
    return _adam(b, False, **arguments)


@rule("aten._fused_adamw.default", "aten._fused_adamw.tensor_lr", numbers=ADAM_NUMBERS)
def fused_adamw(b: Builder, **arguments: Any) -> Lists:
    """One AdamW step of every parameter (https://arxiv.org/abs/1711.05101)."""
    return _adam(b, True, **arguments)


@rule("aten._fused_sgd.default", "aten._fused_sgd.tensor_lr", numbers=SGD_NUMBERS)
def fused_sgd(
    b: Builder,
    self: list[SSAValue],
    grads: list[SSAValue],
    momentum_buffer_list: list[SSAValue],
    weight_decay: Operand,
    momentum: Operand,
    lr: Operand,
    dampening: Operand,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: SSAValue | None,
    found_inf: SSAValue | None,
) -> Lists:
    """One SGD step of every parameter: v = momentum v + (1 - dampening) g, x = x - lr v. Without buffers v is g."""
    params: list[SSAValue] = []
    buffers: list[SSAValue] = []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        e = element(b, param)
        x = e.wide(param)
        g = e.penalized(e.gradient(grad, grad_scale, maximize), x, weight_decay)
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            v = g
            if not is_first_step:
                v = b.add(e.times(e.wide(old), double(b, momentum)), e.times(g, complement(b, dampening)))
            buffers.append(stored(b, found_inf, old, v))
            g = b.add(g, e.times(v, double(b, momentum))) if nesterov else v
        params.append(stored(b, found_inf, param, b.sub(x, e.times(g, double(b, lr)))))
    return params, final_gradients(b, grads, found_inf, grad_scale), buffers


def _adagrad(
    b: Builder,
    self: list[SSAValue],
    grads: list[SSAValue],
    state_sums: list[SSAValue],
    state_steps: list[SSAValue],
    lr: Operand,
    lr_decay: Operand,
    weight_decay: Operand,
    eps: Operand,
    maximize: bool,
    grad_scale: SSAValue | None,
    found_inf: SSAValue | None,
) -> Lists:
    params: list[SSAValue] = []
    sums: list[SSAValue] = []
    for param, grad, total, step in zip(self, grads, state_sums, state_steps, strict=True):
        e = element(b, param)
        x = e.wide(param)
        g = e.penalized(e.gradient(grad, grad_scale, maximize), x, weight_decay)
        summed = b.add(e.wide(total), b.mul(g, g))
        one = b.constant(1.0, "f64")
        elapsed = b.sub(b.convert(b.reshape(step, ()), "f64"), one)
        slowdown = b.add(one, b.mul(elapsed, double(b, lr_decay)))
        size = b.div(b.convert(double(b, lr), e.dtype), b.convert(slowdown, e.dtype))
        denominator = b.add(b.sqrt(summed), e.spread(double(b, eps)))
        params.append(stored(b, found_inf, param, b.sub(x, b.div(e.times(g, size), denominator))))
        sums.append(stored(b, found_inf, total, summed))
    return params, final_gradients(b, grads, found_inf, grad_scale), sums


@rule("aten._fused_adagrad.default", numbers=ADAGRAD_NUMBERS)
def fused_adagrad(b: Builder, state_steps: list[SSAValue], **arguments: Any) -> Lists:
    """One Adagrad step of every parameter (https://jmlr.org/papers/v12/duchi11a.html). Does not count steps."""
    return (*_adagrad(b, state_steps=state_steps, **arguments), state_steps)


@rule("aten._fused_adagrad.tensor_lr", numbers=ADAGRAD_NUMBERS)
def fused_adagrad_tensor_lr(b: Builder, **arguments: Any) -> Lists:
    """`fused_adagrad` with the learning rate in a tensor."""
    return _adagrad(b, **arguments)
