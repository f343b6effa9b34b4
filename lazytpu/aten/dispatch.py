"""From one ATen op and its operands as values to dialect ops: by its rule, its functional form, or its decomposition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from xdsl.ir import SSAValue

from lazytpu.aten import dtypes, registry
from lazytpu.aten.scalars import KINDS, Scalar
from lazytpu.aten.schema import Signature, bind, functional, signature
from lazytpu.aten.views import Base, View, read, write
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

Meta = tuple[str, tuple[int, ...]]  # dtype and shape that torch gives one result


@dataclass
class Outcome:
    """Values an op produced: one entry per schema return that is new (a value, a list, or None), and the new values of
    the arguments it writes, by name."""

    returns: list[Any]
    writes: dict[str, Any]


def missing_rule(op: OpOverload) -> NotImplementedError:
    """The error of an op that nothing expresses: its name, and the three lines that would add it."""
    arguments = ", ".join(signature(op).names)
    return NotImplementedError(
        f"'{op}' has no rule on 'tpu' and torch has no decomposition of it. To add one, in a file of lazytpu/aten/:\n"
        f'    @rule("{op}")\n'
        f"    def {op._schema.name.partition('::')[2]}(b, {arguments}):\n"
        f"        return ...  # built from b.add, b.reduce, b.template, …; see docs/adding-an-op.md"
    )


@functools.cache
def decomposition(op: OpOverload) -> Callable[..., Any] | None:
    """torch's own decomposition of `op` into other ops, or None."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    for table in (_core_table(core_aten_decompositions), decomposition_table):
        if op in table:
            return table[op]
    if op._can_decompose():
        return op.decompose
    return None


@functools.cache
def _core_table(make: Callable[[], Any]) -> dict[Any, Callable[..., Any]]:
    return dict(make())


def supported(op: OpOverload) -> bool:
    """Whether `op` can be expressed at all (its decomposition's own ops are checked when it is imported)."""
    name, rules = str(op), registry.load()
    if name in rules or decomposition(op) is not None:
        return True
    other = functional(op) if signature(op).written else None
    return other is not None and supported(other)


def evaluate(
    b: Builder,
    op: OpOverload,
    bound: dict[str, Any],
    outs: Sequence[Meta],
    rng: tuple[SSAValue, SSAValue] | None = None,
) -> Outcome:
    """Build `op` on `bound` (arguments by name: SSAValues, Scalars, lists of them, or Python values).

    `outs` are the dtypes and shapes torch expects of the new results, flattened. Raises NotImplementedError when
    nothing expresses `op`.
    """
    rules, s = registry.load(), signature(op)
    found = rules.get(str(op))
    if found is not None:
        results = _call_rule(b, found, bound, outs, rng, s)
        return _split(op, results, s)
    if s.written and (other := functional(op)) is not None and supported(other):
        return _through_functional(b, op, other, bound, outs, rng)
    decompose = decomposition(op)
    if decompose is None:
        raise missing_rule(op)
    with Expansion(b, rng) as expansion:
        arguments = {name: expansion.to_python(value) for name, value in bound.items()}
        positional = [arguments.pop(a.name) for a in op._schema.arguments if not a.kwarg_only]
        results = decompose(*positional, **arguments)
        flat = list(results) if isinstance(results, tuple | list) and len(s.returned) != 1 else [results]
        fresh = [expansion.read_any(r) for r, alias in zip(flat, s.returned, strict=False) if alias is None]
        written = {
            name: expansion.read_any(positional[i] if i < len(positional) else arguments[name])
            for i, name in enumerate(s.names)
            if name in s.written
        }
    return Outcome(fresh, written)


def _call_rule(
    b: Builder,
    found: registry.Rule,
    bound: dict[str, Any],
    outs: Sequence[Meta],
    rng: tuple[SSAValue, SSAValue] | None,
    s: Signature,
) -> list[Any]:
    outer, b.out = b.out, list(outs)
    try:
        arguments = {k: _argument(b, k, v, found, s) for k, v in bound.items()}
        extra = {"rng": rng} if found.random else {}
        results = found.function(b, **{_python_name(k): v for k, v in arguments.items()}, **extra)
    finally:
        b.out = outer
    return list(results) if isinstance(results, tuple) else [results]


def _python_name(name: str) -> str:
    return "from_" if name == "from" else name


def _argument(b: Builder, name: str, value: Any, found: registry.Rule, s: Signature) -> Any:
    """An argument as the rule wants it: numbers as Scalars, a number in a tensor's place as a 0-d value."""
    if isinstance(value, list | tuple) and name in s.numbers | s.tensors | found.numbers:
        return [_argument(b, name, v, found, s) for v in value]
    if type(value) in KINDS and name in s.numbers | s.tensors | found.numbers:
        value = Scalar(KINDS[type(value)], value)
    if isinstance(value, Scalar) and name not in found.numbers and name in s.tensors:
        return _settle(b, value)
    return value


def _settle(b: Builder, value: Any) -> Any:
    """A number given where the schema wants a tensor (a wrapped number) becomes 0-d, of torch's dtype for it."""
    if isinstance(value, Scalar):
        default = dtypes.name(torch.get_default_dtype())
        return value.materialize(b, {"int": "i64", "bool": "i1", "float": default, "complex": "c64"}[value.kind])
    return value


def _split(op: OpOverload, results: list[Any], s: Signature) -> Outcome:
    fresh = sum(r is None for r in s.returned)
    if len(results) != fresh + len(s.written):
        if fresh == 1 and not s.written:  # a Tensor[] result given as a tuple
            return Outcome([results], {})
        raise AssertionError(f"the rule of {op} gave {len(results)} results, expected {fresh + len(s.written)}")
    return Outcome(results[:fresh], dict(zip(s.written, results[fresh:], strict=True)))


def _through_functional(
    b: Builder,
    op: OpOverload,
    other: OpOverload,
    bound: dict[str, Any],
    outs: Sequence[Meta],
    rng: tuple[SSAValue, SSAValue] | None,
) -> Outcome:
    s, f = signature(op), signature(other)
    current = {name: bound[name] for name in s.written}
    fresh = list(outs) if any(r is None for r in s.returned) else []
    targets = [_meta(v) for v in current.values() if v is not None for v in (v if isinstance(v, list) else [v])]
    arguments = {k: v for k, v in bound.items() if k in f.names}
    if set(s.written) <= set(f.names):  # in place: the functional form computes at the promoted dtype
        targets = [_promoted(op, bound, t) for t in targets]
    inner = evaluate(b, other, arguments, [*fresh, *targets], rng)
    results = inner.returns
    if len(s.written) == 1 and isinstance(bound[s.written[0]], list) and len(results) > 1:
        results = [results]
    new = results[-len(s.written) :]
    writes = {name: _like(b, value, current[name]) for name, value in zip(s.written, new, strict=True)}
    return Outcome(results[: len(results) - len(s.written)], writes)


def _meta(value: SSAValue) -> Meta:
    return dtype_of(value), shape_of(value)


def _promoted(op: OpOverload, bound: dict[str, Any], target: Meta) -> Meta:
    """dtype of the functional op's result for an in-place op: tensors of higher category than self do not occur (torch
    refuses them), so it is self's dtype, except for comparisons, whose functional result is bool."""
    name = op._schema.name.partition("::")[2].rstrip("_")
    comparisons = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not"}
    return ("i1", target[1]) if name in comparisons else target


def _like(b: Builder, value: Any, target: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_like(b, v, t) for v, t in zip(value, target, strict=True)]
    if value is None or target is None:
        return target
    return b.convert(value, dtype_of(target))


class Expansion(TorchDispatchMode):
    """Imports the ops that a decomposition calls on meta tensors; each meta storage stands for a value."""

    def __init__(self, b: Builder, rng: tuple[SSAValue, SSAValue] | None = None):
        super().__init__()
        self.b, self.rng, self.draws = b, rng, 0
        self.memory: dict[int, tuple[Any, Base, SSAValue]] = {}

    def adopt(self, value: SSAValue) -> torch.Tensor:
        """A meta tensor that stands for `value`."""
        tensor = torch.empty(shape_of(value), dtype=dtypes.torch_dtype(dtype_of(value)), device="meta")
        self.assign(tensor, value)
        return tensor

    def assign(self, tensor: torch.Tensor, value: SSAValue) -> None:
        """Let the new tensor's storage stand for `value` (logical)."""
        base = Base(dtypes.name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()))
        storage = tensor.untyped_storage()
        self.memory[storage._cdata] = (storage, base, base.to_memory(self.b, value))

    def read(self, tensor: torch.Tensor) -> SSAValue:
        """The logical value of a meta tensor, or of a constant that the decomposition made on the CPU."""
        if tensor.device.type == "cpu":
            return self.b.array(tensor.detach().numpy(), dtypes.name(tensor.dtype))
        _, base, memory = self.memory[tensor.untyped_storage()._cdata]
        return read(self.b, memory, base, _view(tensor))

    def read_any(self, value: Any) -> Any:
        """`read` over lists; None and Python values stay."""
        if isinstance(value, torch.Tensor):
            return self.read(value)
        if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
            return [self.read_any(v) for v in value]
        return value

    def to_python(self, value: Any) -> Any:
        """What the decomposition is called with: meta tensors for values, numbers for Scalars."""
        if isinstance(value, SSAValue):
            return self.adopt(value)
        if isinstance(value, Scalar):
            return value.value if value.plan is None else self.adopt(_settle(self.b, value))
        if isinstance(value, list):
            return [self.to_python(v) for v in value]
        return torch.device("meta") if isinstance(value, torch.device) else value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        s = signature(func)
        results = func(*args, **kwargs)
        if s.views or func._schema.name in ("aten::detach", "aten::lift_fresh"):
            return results
        flat = [t for t in _tensors(results) if t.device.type == "meta"]
        if not flat and not s.written:
            return results
        bound = bind(func, args, kwargs)
        values = {name: self._operand(name, value, s) for name, value in bound.items()}
        fresh = [r for r, alias in zip(_as_list(results, s), s.returned, strict=False) if alias is None]
        metas = [(dtypes.name(t.dtype), tuple(t.shape)) for t in _tensors(fresh)]
        if func._schema.name in ("aten::empty", "aten::empty_strided", "aten::new_empty", "aten::empty_like"):
            for tensor in flat:
                self.assign(tensor, self.b.constant(0, dtypes.name(tensor.dtype), tuple(tensor.shape)))
            return results
        outcome = evaluate(self.b, func, values, metas, self._next_rng())
        for tensor, value in zip(_tensors(fresh), _values(outcome.returns), strict=True):
            self.assign(tensor, value)
        for name, value in outcome.writes.items():
            for tensor, new in zip(_tensors(bound[name]), _values([value]), strict=True):
                self._write(tensor, new)
        return results

    def _next_rng(self) -> tuple[SSAValue, SSAValue] | None:
        """Each random op inside one decomposition draws from its own stream."""
        if self.rng is None:
            return None
        seed, offset = self.rng
        self.draws += 1
        return seed, self.b.add(offset, self.b.constant(self.draws << 48, "ui64"))

    def _operand(self, name: str, value: Any, s: Signature) -> Any:
        if isinstance(value, torch.Tensor):
            return self.read(value)
        if name in s.numbers or name in s.tensors:
            if type(value) in KINDS:
                return Scalar(KINDS[type(value)], value)
            if isinstance(value, list | tuple):
                return [self._operand(name, v, s) for v in value]
        return value

    def _write(self, tensor: torch.Tensor, value: SSAValue) -> None:
        key = tensor.untyped_storage()._cdata
        storage, base, memory = self.memory[key]
        self.memory[key] = (storage, base, write(self.b, memory, base, _view(tensor), value))


def _view(tensor: torch.Tensor) -> View:
    return View(
        tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), dtypes.name(tensor.dtype)
    )


def _as_list(results: Any, s: Signature) -> list[Any]:
    return list(results) if len(s.returned) != 1 and isinstance(results, tuple | list) else [results]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return []


def _values(value: Any) -> list[SSAValue]:
    if isinstance(value, SSAValue):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _values(v)]
    return []
