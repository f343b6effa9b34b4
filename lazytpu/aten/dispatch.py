"""Imports one ATen op: by its rule, by its functional form, or by one of torch's decompositions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload
from xdsl.ir import SSAValue

from lazytpu.aten import registry
from lazytpu.aten.ambient import torch_as_recorded
from lazytpu.aten.expansion import Expansion, Literals, as_list, settle
from lazytpu.aten.preconditions import PRECONDITIONS
from lazytpu.aten.scalars import KINDS, Scalar
from lazytpu.aten.schema import OpSignature, functional, signature
from lazytpu.aten.support import decomposition, missing_rule, supported
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

Meta = tuple[str, tuple[int, ...]]  # a result's dtype and shape, according to torch
# How often an op may occur in its own decomposition. Some are circular: conj_physical calls a prim that calls it again.
DEEPEST = 4


@dataclass
class Evaluation:
    """The values an op produces.

    `returns` has one entry per schema return that is new: a value, a list, or None. `writes` maps the name of each
    mutated argument to its new value.
    """

    returns: list[Any]
    writes: dict[str, Any]


def evaluate(
    b: Builder,
    op: OpOverload,
    bound: dict[str, Any],
    outs: Sequence[Meta],
    rng: tuple[SSAValue, SSAValue] | None = None,
    within: tuple[OpOverload, ...] = (),
) -> Evaluation:
    """Build `op` on `bound` (arguments by name: SSAValues, Scalars, lists of them, or Python values).

    `outs` are the dtypes and shapes that torch expects of the new results, flattened. `within` are the ops whose
    decompositions led here, outermost first. Raises NotImplementedError if `op` has neither rule nor decomposition.
    """
    rules, s = registry.load(), signature(op)
    rule = rules.get(str(op))
    if rule is not None:
        results = _call_rule(b, rule, bound, outs, rng, s)
        return _split(op, results, s)
    if s.written and (counterpart := functional(op)) is not None and supported(counterpart):
        return _through_functional(b, op, counterpart, bound, outs, rng, within)
    decompose = decomposition(op)
    if decompose is None or within.count(op) >= DEEPEST:
        raise missing_rule(op)
    check = PRECONDITIONS.get(str(op))
    if check is not None:
        check(b, bound)
    with torch_as_recorded(), Literals(), Expansion(b, rng, (*within, op), evaluate) as expansion:
        arguments = {name: expansion.to_python(value) for name, value in bound.items()}
        positional = [arguments.pop(a.name) for a in op._schema.arguments if not a.kwarg_only]
        results = decompose(*positional, **arguments)
        pairs = zip(as_list(results, s), s.returned, strict=False)
        fresh = [expansion.read_any(r) for r, alias in pairs if alias is None]
        written = {
            name: expansion.read_any(positional[i] if i < len(positional) else arguments[name])
            for i, name in enumerate(s.names)
            if name in s.written
        }
    return Evaluation(fresh, written)


def _call_rule(
    b: Builder,
    rule: registry.Rule,
    bound: dict[str, Any],
    outs: Sequence[Meta],
    rng: tuple[SSAValue, SSAValue] | None,
    s: OpSignature,
) -> list[Any]:
    outer, b.out = b.out, list(outs)
    try:
        arguments = {k: _argument(b, k, v, rule, s) for k, v in bound.items()}
        extra = {"rng": rng} if rule.random else {}
        results = rule.function(b, **{rule.renamed.get(k, k): v for k, v in arguments.items()}, **extra)
    finally:
        b.out = outer
    return list(results) if isinstance(results, tuple) else [results]


def _argument(b: Builder, name: str, value: Any, rule: registry.Rule, s: OpSignature) -> Any:
    """An argument as the rule expects it: numbers as Scalars, a number in place of a tensor as a 0-d value."""
    scalars = s.numbers | s.tensors | rule.numbers | rule.specialized
    if isinstance(value, list | tuple) and name in scalars:
        return [_argument(b, name, v, rule, s) for v in value]
    if type(value) in KINDS and name in scalars:
        value = Scalar(KINDS[type(value)], value)
    if isinstance(value, Scalar) and name not in rule.numbers and name in s.tensors:
        return settle(b, value)
    return value


def _split(op: OpOverload, results: list[Any], s: OpSignature) -> Evaluation:
    fresh = sum(r is None for r in s.returned)
    if len(results) != fresh + len(s.written):
        if fresh == 1 and not s.written:  # a Tensor[] result returned as a tuple
            return Evaluation([results], {})
        raise AssertionError(f"the rule of {op} returned {len(results)} results, expected {fresh + len(s.written)}")
    return Evaluation(results[:fresh], dict(zip(s.written, results[fresh:], strict=True)))


def _through_functional(
    b: Builder,
    op: OpOverload,
    other: OpOverload,
    bound: dict[str, Any],
    outs: Sequence[Meta],
    rng: tuple[SSAValue, SSAValue] | None,
    within: tuple[OpOverload, ...],
) -> Evaluation:
    s, f = signature(op), signature(other)
    current = {name: bound[name] for name in s.written}
    fresh = list(outs) if any(r is None for r in s.returned) else []
    targets = [_meta(v) for v in current.values() if v is not None for v in (v if isinstance(v, list) else [v])]
    in_place = op._schema.name != other._schema.name
    if in_place and set(s.names) != set(f.names):  # by position: dropout_ has `self` where dropout has `input`
        arguments = {k: bound[n] for k, n in zip(f.names, s.names, strict=True)}
    else:  # by name: polygamma_ takes (self, n), polygamma (n, self)
        arguments = {k: v for k, v in bound.items() if k in f.names}
    if in_place:  # the functional form computes at the promoted dtype
        targets = [_promoted(op, bound, t) for t in targets]
    inner = evaluate(b, other, arguments, [*fresh, *targets], rng, within)
    results = inner.returns
    if len(s.written) == 1 and isinstance(bound[s.written[0]], list) and len(results) > 1:
        results = [results]
    new = results[-len(s.written) :]
    writes = {name: _like(b, value, current[name]) for name, value in zip(s.written, new, strict=True)}
    return Evaluation(results[: len(results) - len(s.written)], writes)


def _meta(value: SSAValue) -> Meta:
    return dtype_of(value), shape_of(value)


def _promoted(op: OpOverload, bound: dict[str, Any], target: Meta) -> Meta:
    """The dtype and shape of the functional op's result. torch refuses an in-place op whose operands promote past
    self's category, so the dtype is self's, except for comparisons, whose functional result is bool."""
    name = op._schema.name.partition("::")[2].rstrip("_")
    comparisons = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not"}
    return ("i1", target[1]) if name in comparisons else target


def _like(b: Builder, value: Any, target: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_like(b, v, t) for v, t in zip(value, target, strict=True)]
    if value is None or target is None:
        return target
    return b.convert(value, dtype_of(target))
