"""JAX functions of arrays and functions derived from them: derivatives, batched forms, and the op of each signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer

from lazytpu.aten import dtypes
from lazytpu.frontend.torch_private import set_frame_callback
from lazytpu.ir.padding_rule import PaddingRule
from lazytpu.ir.sharding import ShardingRule
from lazytpu.ir.types import numpy_dtype
from lazytpu.kernels.differentiation import Function, reversible, scanned
from lazytpu.kernels.exchange import TORCH_DTYPES
from lazytpu.kernels.ops import declare, takes_list
from lazytpu.kernels.tracing import Operand, trace
from lazytpu.trace.families import MEMBERS, Kind

Mask = tuple[bool, ...]


@dataclass(eq=False)
class Call:
    """A function for operands of given shapes and dtypes: the op that records it, its key, and its results.

    For the forward pass of a derivative, `pull` describes its backward pass, and `kept` is the number of residuals
    among the results. `backward` maps the results that have gradients to backward passes.
    """

    op: Any
    key: str
    results: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    pull: Any = None
    kept: int = 0
    backward: dict[Mask, Program] = field(default_factory=dict[Mask, "Program"])

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Record the call. A result that is written into an operand is not returned."""
        operands = [list(tensors)] if takes_list(len(tensors)) else tensors
        returned = self.op(*operands, self.key)
        if type(returned) is tuple:
            return returned
        return () if returned is None else tuple(returned) if type(returned) is list else (returned,)


class Program:
    """A JAX function of arrays that returns a tree of arrays. `aliases` are (operand, result): the result is written
    into the operand. `weak` are the operands that are Python numbers, `sharding` says how arrays may be divided, and
    `padding` which sizes may vary. `same` checks that the function's captured state is unchanged."""

    users = False
    """Whether the function is the user's own, and not derived from it."""

    def __init__(
        self,
        name: str,
        function: Function,
        aliases: tuple[tuple[int, int], ...] = (),
        weak: frozenset[int] = frozenset(),
        sharding: ShardingRule | None = None,
        padding: PaddingRule | None = None,
        same: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.function = function
        self.aliases = aliases
        self.weak = weak
        self.sharding = sharding
        self.padding = padding
        self.same = same
        self._trees: dict[Any, Any] = {}
        self._calls: dict[Any, Call] = {}
        self._derived: dict[Any, Program] = {}

    def call(self, tensors: Sequence[torch.Tensor]) -> Call:
        """Return the op for operands like these. Traces the function when their shapes and dtypes are new."""
        signature = tuple([(t.shape, t.dtype) for t in tensors])
        try:
            cached = self._calls.get(signature)
        except TypeError:  # symbolic sizes: specialize the kernel to their current values
            signature = tuple([(tuple(map(int, t.shape)), t.dtype) for t in tensors])
            cached = self._calls.get(signature)
        if cached is None:
            cached = self._calls[signature] = self._trace(tensors)
        return cached

    def _trace(self, tensors: Sequence[torch.Tensor]) -> Call:
        operands: list[Operand] = [
            (numpy_dtype(dtypes.name(t.dtype)), tuple(map(int, t.shape)), i in self.weak) for i, t in enumerate(tensors)
        ]
        rules = [rule for rule in (self.sharding, self.padding) if rule is not None]
        traced = trace(self.name, self.leaves, operands, self.users, " ".join(map(str, rules)))
        results = tuple((_torch_dtype(self.name, dtype), shape) for dtype, shape in traced.results)
        self._check_aliases(tensors, results)
        for rule in rules:
            try:
                rule.check([shape for _, shape, _ in operands], [shape for _, shape in results])
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from None
        sharding, padding = ("" if rule is None else str(rule) for rule in (self.sharding, self.padding))
        op = declare(self.name, len(tensors), self.aliases, traced.key, results, (sharding, padding))
        if traced.key not in MEMBERS:  # of two equal families, keep the first
            kinds = tuple([(t.dtype, tuple(map(int, t.shape))) for t in tensors])
            MEMBERS[traced.key] = AtSizes(self, kinds, traced.key, results)
        return Call(op, traced.key, results)

    def _check_aliases(self, tensors: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        for operand, result in self.aliases:
            if not (0 <= operand < len(tensors) and 0 <= result < len(results)):
                raise ValueError(
                    f"{self.name}: input_output_aliases has {operand}: {result}, but there are {len(tensors)} operands "
                    f"and {len(results)} results"
                )
            mine, its = (tensors[operand].dtype, tuple(tensors[operand].shape)), results[result]
            if mine != its:
                raise ValueError(
                    f"{self.name}: result {result} is to be written into operand {operand}, which is "
                    f"{describe(*mine)}, but it is {describe(*its)}: they have to be the same"
                )

    # -- derived programs

    def derived(self, key: Any, make: Callable[[], Function]) -> Program:
        """Return the program of the function that `make` returns, created once for each key."""
        program = self._derived.get(key)
        if program is None:
            program = self._derived[key] = Program(f"{self.name}_{key[0]}", make(), (), self.weak)
        return program

    def without_aliases(self) -> Program:
        """Return the program with new arrays in place of the operands that it writes into."""
        return self.derived(("copied",), lambda: self.leaves)

    def vjp(self, wanted: Mask, given: Mask) -> Program:
        """Return the program (*operands, *cotangents of the results `given`) -> gradients of the operands `wanted`."""
        return self.derived(("vjp", wanted, given), lambda: _vjp(self.leaves, wanted, given))

    def jvp(self, given: Mask) -> Program:
        """Return the program (*operands, *tangents of the operands `given`) -> tangents of the results that are
        floats."""
        return self.derived(("jvp", given), lambda: _jvp(self.leaves, given))

    def vmap(self, dims: tuple[int | None, ...], size: int) -> Program:
        """Return the function over a batch, along these dims of its operands, and the first dim of its results."""
        return self.derived(
            ("vmap", dims, size), lambda: jax.vmap(self.leaves, in_axes=dims, out_axes=0, axis_size=size)
        )

    def residuals(self, wanted: Mask) -> Residuals:
        """Return the function with the residuals for the gradients of the operands `wanted`."""
        program = self._derived.get(("forward", wanted))
        if program is None:
            program = self._derived["forward", wanted] = Residuals(self, wanted)
        assert isinstance(program, Residuals)
        return program

    def leaves(self, *arrays: Any) -> list[Any]:
        """Return the results as a list. Record their tree, which may depend on the shapes."""
        results, tree = jax.tree.flatten(self.function(*arrays))
        self._trees[tuple([(tuple(a.shape), str(a.dtype)) for a in arrays])] = tree
        return results

    def tree(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the tree of the results for operands like these, for which the function was traced."""
        return self._trees[tuple([(tuple(t.shape), str(numpy_dtype(dtypes.name(t.dtype)))) for t in tensors])]


@dataclass(frozen=True, slots=True)
class AtSizes:
    """A program for operands of given dtypes and shapes, with its key and results."""

    family: Program
    operands: tuple[Kind, ...]
    key: str
    results: tuple[Kind, ...]

    def at(self, operands: Sequence[Kind | None]) -> tuple[str, Sequence[Kind]]:
        """See `lazytpu.trace.families.Member`."""
        kinds = tuple([own if kind is None else kind for own, kind in zip(self.operands, operands, strict=True)])
        if kinds == self.operands:
            return self.key, self.results
        if self.family.padding is None:
            raise NotImplementedError(
                f"the kernel {self.family.name!r} does not state which padding it supports: "
                "lazytpu.pallas.custom_jax_kernel takes it as padding='rows columns=0 -> rows'"
            )
        if not self.family.same():
            raise RuntimeError("the state that the function captures has changed since its call")
        dynamo = set_frame_callback(None)  # it would compile the code that JAX traces
        try:
            call = self.family.call([torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in kinds])
        finally:
            set_frame_callback(dynamo)
        return call.key, call.results


class Residuals(Program):
    """(*operands) -> the results of `of`, and the residuals of its derivative that are not operands or results."""

    def __init__(self, of: Program, wanted: Mask) -> None:
        self.of = of
        self.wanted = wanted
        self._pull: Any = None, 0
        super().__init__(f"{of.name}_forward", self._forward, (), of.weak)

    def _forward(self, *arrays: Any) -> list[Any]:
        differentiated = [a for a, want in zip(arrays, self.wanted, strict=True) if want]

        def floats(*differentiated: Any) -> tuple[list[Any], list[Any]]:
            results = reversible(self.of.leaves)(*_merged(arrays, self.wanted, differentiated))
            return [r for r in results if _is_float(r)], results

        _, pull, results = jax.vjp(floats, *differentiated, has_aux=True)
        leaves, tree = jax.tree.flatten(pull)
        arrays_seen = [*arrays, *results]
        kept: list[Any] = []
        places: list[Any] = []  # for each residual: an index among operands, results and residuals, or a constant
        for leaf in leaves:
            if not isinstance(leaf, Tracer):
                places.append(_Constant(leaf))
                continue
            total = len(arrays_seen) + len(kept)
            index = next((i for i, array in enumerate([*arrays_seen, *kept]) if array is leaf), total)
            if index == total:
                kept.append(leaf)
            places.append(index)
        floats_of = [_is_float(r) for r in results]
        kinds = [(r.dtype, r.shape) for r in results if _is_float(r)]
        self._pull = (tree, places, kinds, floats_of), len(kept)
        return [*results, *kept]

    def _trace(self, tensors: Sequence[torch.Tensor]) -> Call:
        call = super()._trace(tensors)
        call.pull, call.kept = self._pull
        return call

    def backward(self, call: Call, given: Mask) -> Program:
        """Return the program (*operands, *results and residuals, *cotangents of the results `given`) -> the
        gradients."""
        program = call.backward.get(given)
        if program is None:
            tree, places, floats, floats_of = call.pull
            count = len(self.wanted) + len(call.results)

            def gradients(*arrays: Any) -> list[Any]:
                saved, cotangents = arrays[:count], iter(arrays[count:])
                leaves = [place.value if isinstance(place, _Constant) else saved[place] for place in places]
                given_floats = [give for give, is_float in zip(given, floats_of, strict=True) if is_float]
                complete = [
                    _conjugate(next(cotangents)).astype(dtype) if give else jnp.zeros(shape, dtype)
                    for give, (dtype, shape) in zip(given_floats, floats, strict=True)
                ]
                return [_conjugate(g) for g in jax.tree.unflatten(tree, leaves)(complete)]

            program = call.backward[given] = Program(f"{self.of.name}_backward", gradients)
        return program


@dataclass(frozen=True)
class _Constant:
    """A residual with the same value in every run."""

    value: Any


def describe(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Return `float32[8, 128]`."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _torch_dtype(name: str, dtype: Any) -> torch.dtype:
    if dtype not in TORCH_DTYPES:
        raise NotImplementedError(
            f"{name} returned an array of dtype {dtype}, which no tensor can have: convert it in the function, by "
            "x.astype(jnp.int8) for one"
        )
    return TORCH_DTYPES[dtype]


def _is_float(array: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(array), jnp.inexact))


def _conjugate(array: Any) -> Any:
    """Return the conjugate of a complex array: JAX's cotangents are the conjugates of torch's gradients."""
    return jnp.conj(array) if jnp.issubdtype(array.dtype, jnp.complexfloating) else array


def _merged(arrays: Sequence[Any], mask: Mask, chosen: Sequence[Any]) -> list[Any]:
    """Return `arrays`, with the elements of `chosen` where the mask is set."""
    replacements = iter(chosen)
    return [next(replacements) if set_ else array for array, set_ in zip(arrays, mask, strict=True)]


def _vjp(function: Function, wanted: Mask, given: Mask) -> Function:
    def gradients(*arrays: Any) -> list[Any]:
        operands, cotangents = arrays[: len(wanted)], iter(arrays[len(wanted) :])

        def chosen(*differentiated: Any) -> list[Any]:
            results = reversible(function)(*_merged(operands, wanted, differentiated))
            return [r for r, give in zip(results, given, strict=True) if give]

        results, pull = jax.vjp(chosen, *[a for a, want in zip(operands, wanted, strict=True) if want])
        return [_conjugate(g) for g in pull([_conjugate(next(cotangents)).astype(r.dtype) for r in results])]

    return gradients


def _jvp(function: Function, given: Mask) -> Function:
    def tangents(*arrays: Any) -> list[Any]:
        operands, directions = arrays[: len(given)], arrays[len(given) :]

        def floats(*differentiated: Any) -> list[Any]:
            results = scanned(function)(*_merged(operands, given, differentiated))
            return [r for r in results if _is_float(r)]

        primals = [a for a, give in zip(operands, given, strict=True) if give]
        return jax.jvp(floats, primals, [d.astype(p.dtype) for d, p in zip(directions, primals, strict=True)])[1]

    return tangents
