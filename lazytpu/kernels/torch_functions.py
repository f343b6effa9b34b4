"""Torch functions inside of JAX: recorded for the shapes that JAX traces, and called as StableHLO.

A call records the function, in its own trie, on tensors without values. The trace goes through the importer and the
passes, once for each final state, and JAX's program calls the module. So a call may occur in jax.jit and in loops;
jax.grad gets the gradients of torch's autograd, and jax.vmap uses torch.func.vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp

from lazytpu.aten import dtypes
from lazytpu.aten.importer import import_trace
from lazytpu.engine.programs.target import target
from lazytpu.frontend import activation, tensors
from lazytpu.frontend.torch_private import stash_in_thread
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, numpy_dtype
from lazytpu.kernels.exchange import TORCH_DTYPES
from lazytpu.lowering import emit
from lazytpu.options import options
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.passes.registry import for_target
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.xla.jax_functions import exported
from lazytpu.runtime.xla.mlir import portable_artifact
from lazytpu.trace.pending import Trace
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import CutPlan, State
from lazytpu.trace.value import resident, row_major


class TorchFunction:
    """A torch function as a function of JAX arrays; `lazytpu.interop.torch_function` creates it."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._root = State(None, None, None, 0, 0, 0)
        self._modules: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        trees: list[Any] = []

        def on_leaves(*tensors_: torch.Tensor) -> list[torch.Tensor]:
            remaining = iter(tensors_)
            merged = [next(remaining) if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, merged)
            results, out_tree = jax.tree.flatten(self.function(*args, **kwargs))
            trees.append(out_tree)
            return results

        arrays = [jnp.asarray(leaf) for leaf, array in zip(leaves, is_array, strict=True) if array]
        results = _differentiable(self, on_leaves)(*arrays)
        return jax.tree.unflatten(trees[0], results)

    def run(self, function: Callable[..., list[torch.Tensor]], arrays: Sequence[Any]) -> list[Any]:
        """Return the results of a torch function of a list of tensors, for arrays with or without values."""
        recorded = _record(self, function, arrays)
        key = (recorded.state, recorded.live, tuple(map(repr, recorded.numbers)), recorded.order)
        call = self._modules.get(key)
        with jax.enable_x64(True):
            operands = [arrays[i] if type(i) is int else to_jax_of(i) for i in recorded.sources]
            if call is None:
                call = self._modules[key] = _module(self.name, recorded, operands)
            return list(call(*operands))


def to_jax_of(buffer: Buffer) -> Any:
    """Return the array of a captured tensor's buffer, in memory order."""
    return activation.engine().share(buffer)


@dataclass(frozen=True)
class _Recorded:
    """A recorded function: the trace's state, the slots of its results, their shapes, its numbers, and its inputs. An
    input is the index of an array, or the buffer of a captured tensor; `order` has the indices alone."""

    state: State
    live: tuple[int, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    numbers: list[Any]
    sources: tuple[Any, ...]

    @property
    def order(self) -> tuple[int | None, ...]:
        return tuple(i if type(i) is int else None for i in self.sources)


class _Placeholder(Buffer):
    """Takes the place of the memory of array `index` of a call."""

    __slots__ = ("index", "name")

    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index
        self.nbytes, self.origin, self.pins, self.error, self.outcome = 0, None, 1, None, None  # it holds no memory

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Raises RuntimeError: there is no value."""
        raise _unreadable(self.name)


def _unreadable(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name} is traced by JAX, so its tensors have no values: it cannot read one (item(), print, an if on it), nor "
        "end a step. Return what is to be read"
    )


def _record(of: TorchFunction, function: Callable[..., Any], arrays: Sequence[Any]) -> _Recorded:
    activation.activate()
    outer = tensors.recorder()

    def refuse(trace: Trace) -> None:
        raise _unreadable(of.name)

    inner = Recorder(of._root, refuse, CutPlan.of)
    inner.choose_mode("lazy")
    operands = [_placeholder(of.name, index, array) for index, array in enumerate(arrays)]
    values = [tensors.value_of(t) for t in operands]
    with _recording(inner, outer):
        returned = [_result(of.name, value) for value in function(*operands)]
        for operand, value in zip(operands, values, strict=True):
            if tensors.value_of(operand) is not value:
                raise RuntimeError(
                    f"{of.name} writes into its argument, which a function of JAX cannot: write into x.clone()"
                )
        live = tuple([_slot(inner, t) for t in returned])
    state = inner.state
    if any(record.rng is not None for record in state.records()):
        raise RuntimeError(
            f"{of.name} draws random numbers, which would be the same in every run of JAX's program: make them with "
            "jax.random, and pass them as arguments"
        )
    sources = tuple([b.index if isinstance(b, _Placeholder) else b for b in inner.buffers])
    results = tuple([jax.ShapeDtypeStruct(tuple(t.shape), numpy_dtype(dtypes.name(t.dtype))) for t in returned])
    return _Recorded(state, live, results, list(inner.numbers), sources)


@contextmanager
def _recording(inner: Recorder, outer: Recorder) -> Generator[None]:
    stash_in_thread(tensors.STASH, inner)
    try:
        yield
    finally:
        stash_in_thread(tensors.STASH, outer)


def _placeholder(name: str, index: int, array: Any) -> torch.Tensor:
    dtype = TORCH_DTYPES.get(np.dtype(array.dtype))
    if dtype is None or dtype in dtypes.FLOATS8:
        raise NotImplementedError(f"{name}: a torch function inside of JAX takes no arrays of dtype {array.dtype}")
    shape = tuple(array.shape)
    return tensors.wrap(resident(tensors.layout(dtype, shape, row_major(shape)), _Placeholder(name, index)))


def _result(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        where = f"a tensor on '{value.device}'" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise TypeError(f"{name} returned {where}; inside of JAX a torch function returns tensors on 'tpu'")
    value = value.detach().resolve_conj().resolve_neg()
    natural = tensors.is_natural(value, tensors.value_of(value).layout) and value.is_contiguous()
    return value if natural else value.clone(memory_format=torch.contiguous_format)


def _slot(inner: Recorder, tensor: torch.Tensor) -> int:
    """Return the slot of a result. An argument or captured tensor that is returned unchanged is copied."""
    value = tensors.value_of(tensor)
    if value.epoch != inner.epoch or value.buffer is not None:
        tensor = tensor + 0 if tensor.dtype is not torch.bool else tensor | tensor
        value = tensors.value_of(tensor)
    return value.slot


def _module(name: str, recorded: _Recorded, operands: Sequence[Any]) -> Callable[..., Any]:
    """Return a function of JAX that calls the module of a trace."""
    imported = import_trace(recorded.state.records(), recorded.live, (), bounds_checks=False)
    _settle(imported.module, imported.packer(recorded.numbers))
    run_pipeline(imported.module, passes=for_target(target()), verify=options.verify)
    module = emit(imported.module, name=name)
    with module.context:
        artifact = portable_artifact(module)
    shapes = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in operands]
    return exported(name, artifact, shapes, recorded.results)


def _settle(module: ModuleOp, packs: Sequence[np.ndarray[Any, Any]]) -> None:
    """Make the packs of numbers constants, and drop the status from the results."""
    (function,) = (op for op in module.ops if isinstance(op, FuncOp))
    block = function.body.block
    first = block.first_op
    assert first is not None
    b = Builder(block, first)
    for argument, pack in zip(list(block.args), packs, strict=False):
        argument.replace_all_uses_with(b.array(pack, dtype_of(argument)))
    for argument in list(block.args)[: len(packs)]:
        block.erase_arg(argument)
    end = block.last_op
    assert isinstance(end, ReturnOp)
    results = list(end.arguments)[:-1]
    block.erase_op(end)
    block.add_op(ReturnOp(*results))
    attributes = list(function.arg_attrs or ())[len(packs) :]
    function.arg_attrs = ArrayAttr(attributes)
    function.res_attrs = ArrayAttr(list(function.res_attrs or ())[:-1])
    function.function_type = FunctionType.from_lists([a.type for a in block.args], [r.type for r in results])


def _differentiable(of: TorchFunction, function: Callable[..., list[torch.Tensor]]) -> Callable[..., Any]:
    """Return `function` of arrays, with gradients by torch's autograd."""

    @jax.custom_vjp
    def call(*arrays: Any) -> Any:
        return _batched(of, function)(*arrays)

    def forward(*arrays: Any) -> Any:
        return call(*arrays), arrays

    def backward(arrays: Any, cotangents: Any) -> Any:
        floating = [jnp.issubdtype(a.dtype, jnp.inexact) for a in arrays]
        is_differentiable = [c.dtype != jax.dtypes.float0 for c in cotangents]
        directions = [c for c, give in zip(cotangents, is_differentiable, strict=True) if give]
        gradients = iter(_differentiable(of, _gradients(function, floating, is_differentiable))(*arrays, *directions))
        return tuple(
            next(gradients) if is_float else np.zeros(a.shape, jax.dtypes.float0)
            for a, is_float in zip(arrays, floating, strict=True)
        )

    call.defvjp(forward, backward)
    return call


def _gradients(
    function: Callable[..., list[torch.Tensor]], floating: Sequence[bool], given: Sequence[bool]
) -> Callable[..., list[torch.Tensor]]:
    """Return the function (*operands, *cotangents of the results `given`) -> the gradients of the `floating`
    operands."""

    def gradients(*values: torch.Tensor) -> list[torch.Tensor]:
        operands, directions = values[: len(floating)], values[len(floating) :]

        def chosen(*differentiated: torch.Tensor) -> tuple[torch.Tensor, ...]:
            remaining = iter(differentiated)
            merged = [next(remaining) if f else x for x, f in zip(operands, floating, strict=True)]
            return tuple(r for r, give in zip(function(*merged), given, strict=True) if give)

        pulled: Any = torch.func.vjp(chosen, *[x for x, f in zip(operands, floating, strict=True) if f])
        return [g.conj() if g.is_complex() else g for g in pulled[1](tuple(d.conj() for d in directions))]

    return gradients


def _batched(of: TorchFunction, function: Callable[..., list[torch.Tensor]]) -> Callable[..., Any]:
    """Return `function` of arrays, with jax.vmap by torch.func.vmap."""

    @jax.custom_batching.custom_vmap
    def call(*arrays: Any) -> Any:
        return of.run(function, arrays)

    @call.def_vmap
    def batched(size: int, in_batched: Sequence[bool], *arrays: Any) -> Any:
        dims = tuple(0 if batch else None for batch in in_batched)
        mapped = torch.func.vmap(lambda *values: tuple(function(*values)), in_dims=dims)
        results = _differentiable(of, lambda *values: list(mapped(*values)))(*arrays)
        return results, [True] * len(results)

    return call
