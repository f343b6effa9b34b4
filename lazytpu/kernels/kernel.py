"""A custom kernel: a JAX or Pallas function that is called with tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from lazytpu.frontend.libraries.compile import make_opaque
from lazytpu.frontend.torch_private import transforms
from lazytpu.kernels import captured
from lazytpu.kernels.arguments import Parameters, Static, operand, static
from lazytpu.kernels.autograd import apply
from lazytpu.kernels.programs import Program, describe


class CustomKernel:
    """A JAX or Pallas function as an op on tensors; `lazytpu.pallas.custom_jax_kernel` makes it.

    A call is one record of the trace. Tensors among the arguments, also in tuples, lists, dicts and pytrees that JAX
    knows, are its operands; all other arguments are part of it. What the function returns is returned with tensors in
    place of arrays.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        out_shape: Any = None,
        input_output_aliases: Mapping[int, int] | None = None,
        cast_inputs: torch.dtype | None = None,
        sharding_rule: Any = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.out_shape = out_shape
        self.aliases = tuple(sorted((input_output_aliases or {}).items()))
        self.cast_inputs = cast_inputs
        self.sharding_rule = sharding_rule
        self._traceable = function
        self._parameters = Parameters(self.name, function)
        self._programs: dict[Any, Program] = {}
        self._known: dict[Any, Any] = {}  # of calls with tensors alone: their signature -> (op, key)
        self._captured = captured.of(function)
        make_opaque(self)

    def __repr__(self) -> str:
        return f"<custom kernel {self.name}{self._parameters.signature or ''}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_kernel(self, *args, **kwargs)

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Use these for gradients, in the form of `jax.custom_vjp`: `forward(*args)` returns the results and residuals,
        `backward(residuals, cotangents)` the gradients of all array arguments, None for one without."""
        if isinstance(self.function, jax.custom_vjp):
            raise ValueError(f"{self.name} is a jax.custom_vjp, which has derivatives of its own")
        names = self._static_names()
        differentiable = jax.custom_vjp(self.function, nondiff_argnames=names) if names else jax.custom_vjp(self.function)
        differentiable.defvjp(forward, backward)
        self._traceable = differentiable
        self._programs.clear()
        self._known.clear()

    def _static_names(self) -> tuple[str, ...]:
        signature = self._parameters.signature
        if signature is None:
            return ()
        return tuple(name for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY)

    # -- a call

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose signature is looked up in full."""
        args, kwargs = self._parameters.numbers(args, kwargs) if self._parameters.arrays else (args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if operand(leaf)]
        self._check_device(tensors)
        parts = [
            None if operand(leaf) else static(leaf, self.name, lambda leaf=leaf: self._parameters.place(args, kwargs, leaf))
            for leaf in leaves
        ]
        key = (tree, tuple([None if part is None else part.key for part in parts]), self._captured.now())
        program = self._programs.get(key)
        if program is None:
            self._parameters.check(args, kwargs)
            program = self._programs[key] = self._program(tree, parts, tensors)
        if self.cast_inputs is not None and torch.is_autocast_enabled("tpu"):
            tensors = [t.to(self.cast_inputs) if t.is_floating_point() else t for t in tensors]
        results = apply(program, tensors)
        call = program.call(tensors)
        if self.cast_inputs is None and not kwargs and len(tensors) == len(args) and not self.aliases:
            single = len(results) == 1 and call.tree == jax.tree.structure(0)
            if single and all(t.device.type == "tpu" and type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors):
                self._known[self._signature(tensors)] = call.op, call.key
        return jax.tree.unflatten(call.tree, results)

    def _signature(self, tensors: Sequence[Any]) -> Any:
        return (*[(t.shape, t.dtype) for t in tensors], self._captured.now())

    def _program(self, tree: Any, parts: Sequence[Static | None], tensors: Sequence[torch.Tensor]) -> Program:
        def function(*arrays: Any) -> Any:
            remaining = iter(arrays)
            leaves = [next(remaining) if part is None else part.value for part in parts]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            with self._captured.unchanged(self.name):
                results = self._traceable(*args, **kwargs)
            self._check_declared(args, kwargs, results)
            return results

        weak = frozenset(i for i, t in enumerate(tensors) if t.device.type == "cpu")
        program = Program(self.name, function, self.aliases, weak)
        program.users = True
        return program

    def _check_device(self, tensors: Sequence[torch.Tensor]) -> None:
        elsewhere = [t for t in tensors if t.device.type != "tpu" and (t.device.type != "cpu" or t.dim())]
        if elsewhere or (tensors and all(t.device.type != "tpu" for t in tensors)):
            t = (elsewhere or tensors)[0]
            raise RuntimeError(
                f"{self.name}: expected all tensors on 'tpu', but a {describe(t.dtype, t.shape)} is on '{t.device}'. "
                "Move it there (x.to('tpu')); only 0-d tensors, as numbers, may stay on the CPU beside tensors on 'tpu'"
            )

    def _check_declared(self, args: Any, kwargs: Any, results: Any) -> None:
        """Raise ValueError when the function does not return what it declares."""
        if self.out_shape is None:
            return
        declared = self.out_shape(*args, **kwargs) if callable(self.out_shape) else self.out_shape
        expected, actual = (jax.tree.structure(tree) for tree in (declared, results))
        if expected != actual:
            raise ValueError(f"it declares results of the form {expected} by out_shape, and returned {actual}")
        for (path, want), got in zip(
            jax.tree_util.tree_flatten_with_path(declared)[0], jax.tree.leaves(results), strict=True
        ):
            got = jax.eval_shape(lambda x: x, got)
            if (tuple(want.shape), want.dtype) != (tuple(got.shape), got.dtype):
                raise ValueError(
                    f"result{jax.tree_util.keystr(path)} is declared as {want.dtype}{list(want.shape)} by out_shape, and "
                    f"the function returned {got.dtype}{list(got.shape)}. Correct one of them"
                )


def call_kernel(kernel: CustomKernel, *args: Any, **kwargs: Any) -> Any:
    """A call of a kernel. Dynamo puts it into its graphs as it is, without looking into it."""
    if not kwargs:
        try:
            known = kernel._known.get((*[(t.shape, t.dtype) for t in args], kernel._captured.now()))
        except (AttributeError, TypeError):
            known = None
        if (
            known is not None
            and transforms() is None
            and forward_ad._current_level < 0
            and not (torch.is_grad_enabled() and any([t.requires_grad for t in args]))
        ):
            op, key = known
            return op(*args, key)
    return kernel._call(args, kwargs)
