"""Walking and rewriting jaxprs, JAX's traces of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend import core

KERNELS = frozenset({"pallas_call", "mpmd_map"})
"""The primitives of Pallas kernels: `pl.pallas_call`, whose body runs for each step of a grid, and `pl.kernel`, whose
bodies run once on each core of their meshes."""


def is_kernel(equation: Any) -> bool:
    """Whether an equation is the call of a Pallas kernel."""
    return equation.primitive.name in KERNELS


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def equations(jaxpr: Any, into: Callable[[Any], bool] = lambda equation: True) -> Iterator[Any]:
    """Yield all equations of a jaxpr, and of its inner jaxprs where `into(equation)` is true."""
    for equation in jaxpr.eqns:
        yield equation
        if into(equation):
            for inner in inner_jaxprs(equation):
                yield from equations(inner, into)


def rewritten(closed: Any, change: Callable[[Any], dict[str, Any]]) -> Any:
    """Return a closed jaxpr with the parameters `change(equation)` in each call of a Pallas kernel."""
    return closed.replace(jaxpr=_rewritten(closed.jaxpr, change))


def _rewritten(jaxpr: Any, change: Callable[[Any], dict[str, Any]]) -> Any:
    changed: list[Any] = []
    for equation in jaxpr.eqns:
        if is_kernel(equation):
            params = {**equation.params, **change(equation)}
        else:
            params = {name: _inside(value, change) for name, value in equation.params.items()}
        changed.append(equation.replace(params=params))
    return jaxpr.replace(eqns=changed)


def _inside(value: Any, change: Callable[[Any], dict[str, Any]]) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        return rewritten(value, change)
    if isinstance(value, core.Jaxpr):
        return _rewritten(value, change)
    return tuple(_inside(item, change) for item in value) if type(value) is tuple else value


def evaluate(closed: Any, arguments: Sequence[Any], apply: Callable[[Any, list[Any]], Sequence[Any] | None]) -> Any:
    """Evaluate a closed jaxpr. `apply(equation, operands)` replaces an equation's results unless it returns None."""
    values: dict[Any, Any] = {}
    jaxpr = closed.jaxpr
    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        results = apply(equation, operands)
        if results is None:
            results = bind(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def bind(equation: Any, operands: Sequence[Any], **params: Any) -> Sequence[Any]:
    """Evaluate an equation, with some of its parameters replaced by `params`."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params({**equation.params, **params}))
    return results if primitive.multiple_results else [results]
