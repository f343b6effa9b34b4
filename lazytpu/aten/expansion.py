"""Runs one of torch's decompositions on meta tensors and imports each op it calls."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from xdsl.ir import SSAValue

from lazytpu.aten import dtypes, registry, symbolic_ints
from lazytpu.aten.ambient import default_complex, default_float
from lazytpu.aten.host_arrays import to_numpy
from lazytpu.aten.scalars import KINDS, Scalar
from lazytpu.aten.schema import OpSignature, bind, signature
from lazytpu.aten.symbolic_ints import from_torch, to_torch
from lazytpu.aten.views.access import Base, View, read, write
from lazytpu.ir.symbolic import Derivation
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of

if TYPE_CHECKING:
    import numpy as np

    from lazytpu.ir.builder import Builder

UNWRITTEN = frozenset(
    ("aten::empty", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty", "aten::empty_like")
)
VIEWS = frozenset(("aten::detach", "aten::lift_fresh", "prims::as_strided"))  # views by meaning, not by schema


class Importing(Protocol):
    """`lazytpu.aten.dispatch.evaluate`."""

    def __call__(
        self,
        b: Builder,
        op: OpOverload,
        bound: dict[str, Any],
        outs: list[tuple[str, tuple[int, ...]]],
        rng: tuple[SSAValue, SSAValue] | None,
        within: tuple[OpOverload, ...],
        /,
    ) -> Any: ...


class Literals(TorchFunctionMode):
    """`torch.tensor(numbers, device="meta")` drops the numbers. Here it builds a CPU tensor and copies that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            if device.type == "meta" and not any(isinstance(a, torch.Tensor) for a in args):
                return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


class Expansion(TorchDispatchMode):
    """Imports the ops that a decomposition calls on meta tensors. Each meta storage stands for a value.

    `within` are the ops being expanded, outermost first; the last is the one whose decomposition runs here.
    """

    def __init__(
        self,
        b: Builder,
        rng: tuple[SSAValue, SSAValue] | None,
        within: tuple[OpOverload, ...],
        evaluate: Importing,
    ):
        super().__init__()
        self.b, self.rng, self.within, self.evaluate = b, rng, within, evaluate
        self.draws = 0
        self.memory: dict[int, tuple[Any, Base, SSAValue]] = {}

    # -- tensors and values

    def adopt(self, value: SSAValue) -> torch.Tensor:
        """A meta tensor that stands for `value`."""
        tensor = torch.empty(to_torch(shape_of(value)), dtype=dtypes.torch_dtype(dtype_of(value)), device="meta")
        self.assign(tensor, value)
        return tensor

    def assign(self, tensor: torch.Tensor, value: SSAValue) -> None:
        """Make the new tensor's storage stand for `value` (logical)."""
        view = _view(tensor)
        base = Base.of(view.dtype, view.size, view.stride)
        if base.size == view.size:
            memory = base.to_memory(self.b, value)
        else:  # gaps or overlapping elements
            empty = self.b.constant(0, base.dtype, base.memory_shape)
            memory = write(self.b, empty, base, View(view.size, view.stride, 0, view.dtype), value)
        storage = tensor.untyped_storage()
        self.memory[storage._cdata] = (storage, base, memory)

    def read(self, tensor: torch.Tensor) -> SSAValue:
        """The logical value of a meta tensor, or of a constant that the decomposition created on the CPU."""
        if tensor.device.type == "cpu":
            return self.b.array(_numpy(tensor), dtypes.name(tensor.dtype))
        _, base, memory = self._found(tensor)
        return self._bits(tensor, read(self.b, memory, base, _view(tensor)))

    def read_any(self, value: Any) -> Any:
        """`read` over nested lists; None and Python values pass through."""
        if isinstance(value, torch.Tensor):
            return self.read(value)
        if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
            return [self.read_any(v) for v in value]
        return value

    def write(self, tensor: torch.Tensor, value: SSAValue) -> None:
        """Write `value` to the part of the storage that `tensor` views."""
        storage, base, memory = self._found(tensor)
        new = write(self.b, memory, base, _view(tensor), self._bits(tensor, value))
        self.memory[storage._cdata] = (storage, base, new)

    def _bits(self, tensor: torch.Tensor, value: SSAValue) -> SSAValue:
        """Apply torch's lazy conjugation and negation bits: from stored to logical value, or back."""
        if tensor.is_conj():
            value = self.b.binary("complex", self.b.unary("real", value), self.b.neg(self.b.unary("imag", value)))
        return self.b.neg(value) if tensor.is_neg() else value

    def _found(self, tensor: torch.Tensor) -> tuple[Any, Base, SSAValue]:
        entry = self.memory.get(tensor.untyped_storage()._cdata)
        if entry is None:
            raise NotImplementedError(
                f"torch's decomposition of '{self.within[-1]}' created a {tensor.dtype} tensor of shape "
                f"{list(tensor.shape)} without calling an op, so its contents are unknown. "
                f"Give '{self.within[-1]}' a rule of its own: see docs/adding-an-op.md"
            )
        return entry

    def to_python(self, value: Any) -> Any:
        """The argument that the decomposition is called with: a meta tensor for a value, a number for a Scalar."""
        if isinstance(value, SSAValue):
            return self.adopt(value)
        if isinstance(value, Scalar):
            return to_torch(value.value) if value.plan is None else self.adopt(settle(self.b, value))
        if isinstance(value, list):
            return [self.to_python(v) for v in value]
        return torch.device("meta") if isinstance(value, torch.device) else to_torch(value)

    # -- the ops that the decomposition calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        s = signature(func)
        if func._can_decompose() and (s.views or str(func) not in registry.load()):
            with self:
                return func.decompose(*args, **kwargs)
        with nullcontext() if Derivation.active is None else symbolic_ints.python_dispatch():
            results = func(*args, **kwargs)
        if s.views or func._schema.name in VIEWS or torch.Tag.inplace_view in func.tags:
            return results  # only metadata changed: the storage stands for the same value
        flat = [t for t in tensors(results) if t.device.type == "meta"]
        if not flat and not s.written:
            return results
        if func._schema.name in UNWRITTEN:
            for tensor in flat:
                self.assign(tensor, self.b.constant(0, dtypes.name(tensor.dtype), from_torch(tensor.shape)))
            return results
        self._import(func, s, bind(func, args, kwargs), results)
        return results

    def _import(self, func: OpOverload, s: OpSignature, bound: dict[str, Any], results: Any) -> None:
        operands = {name: self._operand(name, value, s) for name, value in bound.items()}
        fresh = [r for r, alias in zip(as_list(results, s), s.returned, strict=False) if alias is None]
        metas = [(dtypes.name(t.dtype), from_torch(t.shape)) for t in tensors(fresh)]
        evaluation = self.evaluate(self.b, func, operands, metas, self._next_rng(), self.within)
        for tensor, value in zip(tensors(fresh), values(evaluation.returns), strict=True):
            self.assign(tensor, value)
        for name, value in evaluation.writes.items():
            for tensor, new in zip(tensors(bound[name]), values([value]), strict=True):
                self.write(tensor, new)

    def _next_rng(self) -> tuple[SSAValue, SSAValue] | None:
        """Every random op in a decomposition draws from its own stream."""
        if self.rng is None:
            return None
        seed, offset = self.rng
        self.draws += 1
        return seed, self.b.add(offset, self.b.constant(self.draws << 48, "ui64"))

    def _operand(self, name: str, value: Any, s: OpSignature) -> Any:
        if isinstance(value, torch.Tensor):
            return self.read(value)
        value = from_torch(value)
        if name in s.numbers or name in s.tensors:
            if type(value) in KINDS:
                return Scalar(KINDS[type(value)], value)
            if isinstance(value, list | tuple):
                return [self._operand(name, v, s) for v in value]
        return value


def settle(b: Builder, value: Any) -> Any:
    """A number in place of a tensor (a wrapped number) as a 0-d value of the dtype torch gives it; else `value`."""
    if isinstance(value, Scalar):
        dtype = {"int": "i64", "bool": "i1"}.get(value.kind)
        return value.materialize(b, dtype or (default_complex() if value.kind == "complex" else default_float()))
    return value


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of nested lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return []


def values(value: Any) -> list[SSAValue]:
    """The values of nested lists and tuples, in order."""
    if isinstance(value, SSAValue):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in values(v)]
    return []


def as_list(results: Any, s: OpSignature) -> list[Any]:
    """An op's results, one entry per return of its schema."""
    return list(results) if len(s.returned) != 1 and isinstance(results, tuple | list) else [results]


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return to_numpy(plain).view(numpy_dtype(dtypes.name(tensor.dtype)))


def _view(tensor: torch.Tensor) -> View:
    size, stride, offset = map(from_torch, (tensor.shape, tensor.stride(), tensor.storage_offset()))
    return View(size, stride, offset, dtypes.name(tensor.dtype))
