"""Derivatives of functions with Pallas kernels in them.

JAX has no reverse-mode derivative of a Pallas kernel. Here the kernel runs unchanged, and its derivative is computed
from the interpreter's form: the body's ordinary ops, block by block, as a scan over the grid. It costs as much as these
ops in XLA. A kernel that trains often deserves a hand-written derivative (`jax.custom_vjp`, or `defvjp` of the op),
which has precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from lazytpu.kernels.jaxprs import bind, equations, evaluate, is_kernel
from lazytpu.kernels.pallas_calls import as_pallas_call
from lazytpu.runtime.xla.jax_private import interpreted_kernel, scoped_body, without_references

Function = Callable[..., Any]
"A function of arrays that returns a list of arrays."

_OWN_RULE = ("custom_vjp_call", "custom_vjp_call_jaxpr")


def reversible(function: Function) -> Function:
    """Return `function`, differentiable in reverse mode: its kernels run unchanged, with the derivatives of their
    interpreted form."""
    into = lambda equation: equation.primitive.name not in _OWN_RULE  # noqa: E731
    return _substituted(function, _Substitution(is_kernel, _with_gradient, into))


def scanned(function: Function) -> Function:
    """Return `function` with its kernels in their interpreted form, which is differentiable in both modes."""
    return _substituted(function, _Substitution(is_kernel, _as_scan))


def with_gradient(
    name: str, function: Function, forward: Function, backward: Function, arguments: Callable[[Sequence[Any]], Any]
) -> Function:
    """Return `function` of arrays with a gradient written by hand. `arguments(arrays)` returns the (args, kwargs) for
    `forward`. `backward` returns a gradient for each argument that holds arrays."""

    def pulled(count: int, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        args, kwargs = arguments([_Index(i) for i in range(count)])
        groups = [[leaf for leaf in jax.tree.leaves(a) if isinstance(leaf, _Index)] for a in (*args, *kwargs.values())]
        groups = [group for group in groups if group]
        returned = backward(residuals, cotangents)
        if not isinstance(returned, tuple) or len(returned) != len(groups):
            raise TypeError(
                f"{name}: backward has to return a tuple of {len(groups)} gradients, one for each argument that holds "
                f"tensors (None for none); it returned {returned!r}"
            )
        gradients_of: list[Any] = [None] * count
        for group, gradient in zip(groups, returned, strict=True):
            leaves = jax.tree.leaves(gradient, is_leaf=lambda x: x is None)
            leaves = leaves * len(group) if gradient is None else leaves
            if len(leaves) != len(group):
                raise TypeError(f"{name}: a gradient of backward has {len(leaves)} arrays, its argument {len(group)}")
            for index, leaf in zip(group, leaves, strict=True):
                gradients_of[index.place] = leaf
        return tuple(gradients_of)

    def run(*arrays: Any) -> tuple[Any, Any]:
        args, kwargs = arguments(arrays)
        return forward(*args, **kwargs)

    def differentiable(*arrays: Any) -> Any:
        ruled = jax.custom_vjp(function)
        ruled.defvjp(run, partial(pulled, len(arrays)))
        return ruled(*arrays)

    return differentiable


@dataclass(frozen=True)
class _Index:
    """Takes the place of array `place` in a call, to find the argument that holds it."""

    place: int


@dataclass(frozen=True)
class _Substitution:
    """Replaces the equations for which `wanted` is true by functions of their operands, also inside of the equations
    for which `into` is true."""

    wanted: Callable[[Any], bool]
    by: Callable[[Any], Function]
    into: Callable[[Any], bool] = lambda equation: True

    def is_in(self, jaxpr: Any) -> bool:
        return any(self.wanted(equation) for equation in equations(jaxpr, self.into))


def _substituted(function: Function, substitution: _Substitution) -> Function:
    def substituted(*arrays: Any) -> Any:
        closed = without_references(jax.make_jaxpr(function)(*arrays))
        return _evaluate(closed, arrays, substitution) if substitution.is_in(closed.jaxpr) else function(*arrays)

    return substituted


def _evaluate(closed: Any, arrays: Sequence[Any], new: _Substitution) -> Any:
    def apply(equation: Any, operands: list[Any]) -> Sequence[Any] | None:
        if new.wanted(equation):
            return new.by(equation)(*operands)
        if not new.into(equation) or not any(new.is_in(inner.jaxpr) for inner in _jaxprs(equation)):
            return None
        if equation.primitive.name in ("jit", "pjit", "closed_call", "core_call", *_OWN_RULE, "custom_jvp_call"):
            (inner,) = _jaxprs(equation)
            return _evaluate(inner, operands, new)
        changed = {name: _changed(value, new) for name, value in equation.params.items()}
        return bind(equation, operands, **changed)

    return evaluate(closed, arrays, apply)


def _jaxprs(equation: Any) -> list[Any]:
    """Return the jaxprs of an equation, closed."""
    closed: list[Any] = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                closed.append(item)
            elif isinstance(item, core.Jaxpr):
                closed.append(core.ClosedJaxpr(item, ()))
    return closed


def _changed(value: Any, new: _Substitution) -> Any:
    """Return a parameter of a loop or branch, with the substitution made in its jaxprs."""
    if isinstance(value, core.ClosedJaxpr):  # from jax 0.12 on, each jaxpr is one
        return jax.make_jaxpr(lambda *arrays: _evaluate(value, arrays, new))(*value.in_avals)
    if isinstance(value, core.Jaxpr):
        return _changed(core.ClosedJaxpr(value, ()), new).jaxpr
    return tuple(_changed(item, new) for item in value) if type(value) is tuple else value


def _as_scan(call: Any) -> Function:
    return lambda *arrays: _scan(call, arrays)


def _with_gradient(call: Any) -> Function:
    """Return a Pallas kernel with a derivative. Operands that are not floats (tables of indices) have none."""

    def run(*arrays: Any) -> Any:
        floating = [jnp.issubdtype(a.dtype, jnp.inexact) for a in arrays]

        def merged(differentiated: Sequence[Any], integers: Sequence[Any]) -> list[Any]:
            float_operands, integer_operands = iter(differentiated), iter(integers)
            return [next(float_operands) if is_float else next(integer_operands) for is_float in floating]

        @jax.custom_vjp
        def kernel(differentiated: Any, integers: Any) -> Any:
            return bind(call, merged(differentiated, integers))

        def forward(differentiated: Any, integers: Any) -> Any:
            return kernel(differentiated, integers), (differentiated, integers)

        def backward(saved: Any, cotangents: Any) -> Any:
            differentiated, integers = saved
            _, pull = jax.vjp(lambda *xs: _scan(call, merged(xs, integers)), *differentiated)
            return list(pull(list(cotangents))), None

        kernel.defvjp(forward, backward)
        split = zip(arrays, floating, strict=True)
        pairs = list(split)
        return kernel([a for a, is_float in pairs if is_float], [a for a, is_float in pairs if not is_float])

    return run


def _scan(call: Any, arrays: Sequence[Any]) -> list[Any]:
    """Return the results of a kernel by a scan over its grid. jax's interpreter loops with `while`, which has no
    reverse-mode derivative. It also carries the operands, which would keep a copy of them for each step."""
    call = as_pallas_call(call)
    grid, outputs = call.params["grid_mapping"].grid, len(call.outvars)
    if not all(isinstance(n, int) for n in grid):
        raise NotImplementedError("a Pallas kernel whose grid is known only at run time has no default gradient")
    interpreted = _substituted(lambda *xs: interpreted_kernel(*xs, **call.params), _SCOPES)
    closed = jax.make_jaxpr(interpreted)(*arrays)
    steps = prod(grid)

    def apply(equation: Any, operands: list[Any]) -> Sequence[Any] | None:
        if equation.primitive.name != "while":
            return None
        skipped, consts = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        loop_constants, start = operands[skipped : skipped + consts], operands[skipped + consts :]
        body = core.jaxpr_as_fun(equation.params["body_jaxpr"])
        first = 1 + len(grid)  # the step, and its indices in the grid
        last = first + len(start) - first - outputs - _scratch(call)
        fixed = start[first:last]  # operands: the kernel reads them

        def step(carry: Any, _: Any) -> Any:
            after = body(*loop_constants, *carry[:first], *fixed, *carry[first:])
            return [*after[:first], *after[last:]], None

        ended, _ = jax.lax.scan(step, [*start[:first], *start[last:]], None, length=steps)
        return [*ended[:first], *fixed, *ended[first:]]

    return list(evaluate(closed, arrays, apply))


def _scoped(call: Any) -> Function:
    """Return a `run_scoped`, which jax cannot differentiate, as a function of arrays. Its memory begins with zeros: the
    results of a kernel may not depend on it."""
    body = scoped_body(call)

    def run(*operands: Any) -> list[Any]:
        memory = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in body.jaxpr.invars[len(operands) :]]
        return _evaluate(body, [*operands, *memory], _SCOPES)[: len(call.outvars)]

    return run


_SCOPES = _Substitution(lambda equation: equation.primitive.name == "run_scoped", _scoped)


def _scratch(call: Any) -> int:
    return int(call.params["grid_mapping"].num_scratch_operands)
