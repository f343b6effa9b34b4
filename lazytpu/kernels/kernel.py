"""A custom kernel: a JAX or Pallas function that is called with tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import torch

from lazytpu.frontend.libraries.opaque import make_opaque
from lazytpu.frontend.torch_private import guard_graph, set_frame_callback
from lazytpu.ir.padding_rule import PaddingRule
from lazytpu.ir.sharding import ShardingRule
from lazytpu.kernels import captured, poison
from lazytpu.kernels.arguments import Parameters, Static, check_declared, static
from lazytpu.kernels.autograd import apply, differentiates, recorded
from lazytpu.kernels.differentiation import with_gradient
from lazytpu.kernels.programs import Program, describe


class CustomKernel:
    """A JAX or Pallas function as an op on tensors; `lazytpu.pallas.custom_jax_kernel` creates it.

    A call is one record of the trace. Tensors among the arguments, including those in tuples, lists, dicts and pytrees
    that JAX knows, are its operands; all other arguments are part of it. The results of the function are returned with
    tensors in place of arrays.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        out_shape: Any = None,
        input_output_aliases: Mapping[int, int] | None = None,
        cast_inputs: torch.dtype | None = None,
        sharding_rule: str | None = None,
        padding: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a custom kernel is made of a JAX function; got a {type(function).__name__}")
        if not isinstance(input_output_aliases, Mapping | None):
            raise TypeError(f"expected input_output_aliases={{operand: result}}, got {input_output_aliases!r}")
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.out_shape = out_shape
        self.aliases = tuple(sorted((input_output_aliases or {}).items()))
        self.cast_inputs = cast_inputs
        self.sharding_rule = _parsed(ShardingRule.parse, self.name, "sharding_rule", sharding_rule, _SHARDING)
        self.padding = _parsed(PaddingRule.parse, self.name, "padding", padding, _PADDING)
        self._own_gradient: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._parameters = Parameters(self.name, function)
        self._programs: dict[Any, Program] = {}
        self._known: dict[Any, _Known] = {}  # calls with tensors alone, by signature
        self._captured = captured.Captured(function, self.name)
        make_opaque(self)

    def __repr__(self) -> str:
        return f"<custom kernel {self.name}{self._parameters.signature or ''}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_kernel(self, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __deepcopy__(self, memo: Any) -> CustomKernel:
        return self  # as a function is: a copied module calls the same kernel

    def __reduce__(self) -> str:
        return str(self.__dict__["__qualname__"])  # pickled by name, like a function

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the gradient. `forward` takes the function's arguments and returns (results, residuals).
        `backward(residuals, cotangents)` returns a tuple with the gradient of each argument that holds tensors, in
        order: a tree like the argument, or None for no gradient."""
        self._own_gradient = forward, backward
        self._programs.clear()
        self._known.clear()

    def check_padding(self, *args: Any, **kwargs: Any) -> None:
        """Check the rule `padding`: call the kernel with these arguments, and with padded tensors. Padding has the
        values that the rule requires, and NaN or the largest number elsewhere. Raises ValueError if a result depends on
        it."""
        if self.padding is None:
            raise ValueError(f"{self.name} says nothing of padding")
        args, kwargs, _ = self._parameters.numbers(args, kwargs)
        poison.check(self.name, self, self.padding, args, kwargs)

    # -- a call

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the kernel, with a full look-up of the signature."""
        plain = not kwargs
        args, kwargs, numbers = self._parameters.numbers(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._check_device(tensors, args, kwargs)
        key, program = self._find(leaves, tree, numbers, args, kwargs)
        if self.cast_inputs is not None and torch.is_autocast_enabled("tpu"):
            tensors = [t.to(self.cast_inputs) if t.is_floating_point() else t for t in tensors]
        results = apply(program, tensors)
        captured = self._captured.now()
        self._programs[*key, captured] = program  # tracing may have added to a container
        tree = program.tree(tensors)
        if plain and not numbers and self.cast_inputs is None and all(type(t) in _PLAIN for t in args):
            self._known[(*[(t.shape, t.dtype) for t in args], captured)] = _Known(program, tree)
        return jax.tree.unflatten(tree, results)

    def _find(
        self, leaves: Sequence[Any], tree: Any, numbers: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Program]:
        """Return the program for the non-tensor arguments, and its key without the captured state."""

        def static_leaf(leaf: Any) -> Static | None:
            if isinstance(leaf, torch.Tensor):
                return None
            return static(leaf, self.name, lambda: self._parameters.place(args, kwargs, leaf))

        statics = [static_leaf(leaf) for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        weak = frozenset(i for i, t in enumerate(tensors) if any(t is n for n in numbers))
        objects = [s.value for s in statics if s is not None and not isinstance(s.value, captured.PLAIN)]
        contents = self._captured.now(objects) if objects else ()
        key = (tree, tuple([None if s is None else s.key for s in statics]), weak, contents)
        program = self._programs.get((*key, self._captured.now()))
        if program is None:
            self._parameters.check(args, kwargs)
            program = self._program(tree, statics, weak)
        return key, program

    def _program(self, tree: Any, statics: Sequence[Static | None], weak: frozenset[int]) -> Program:
        def arguments(arrays: Sequence[Any]) -> Any:
            remaining = iter(arrays)
            return jax.tree.unflatten(tree, [next(remaining) if part is None else part.value for part in statics])

        def function(*arrays: Any) -> Any:
            args, kwargs = arguments(arrays)
            with self._captured.unchanged(self.name):
                results = self.function(*args, **kwargs)
            if self.out_shape is not None:
                check_declared(self.out_shape, args, kwargs, results)
            return results

        if self._own_gradient is not None:
            function = with_gradient(self.name, function, *self._own_gradient, arguments)
        before = self._captured.now()
        rules = self.sharding_rule, self.padding
        program = Program(self.name, function, self.aliases, weak, *rules, lambda: self._captured.now() == before)
        program.users = True
        return program

    def _check_device(self, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise RuntimeError unless all tensors are on the device; 0-d ones may be on the CPU besides others. Raise
        TypeError for a tensor that is not dense."""
        sparse = next((t for t in tensors if t.layout is not torch.strided), None)
        if sparse is not None:
            raise TypeError(
                f"{self.name}: {self._parameters.place(args, kwargs, sparse)} is a tensor of {sparse.layout}; kernels "
                "take dense ones: x.to_dense(), or its indices and values"
            )
        misplaced = [t for t in tensors if t.device.type != "tpu" and (t.device.type != "cpu" or t.dim())]
        if misplaced or (tensors and all(t.device.type != "tpu" for t in tensors)):
            t = (misplaced or tensors)[0]
            raise RuntimeError(
                f"{self.name}: expected all tensors on 'tpu', but {self._parameters.place(args, kwargs, t)}, a "
                f"{describe(t.dtype, t.shape)}, is on '{t.device}'. Move it there (x.to('tpu')); only 0-d tensors, as "
                "numbers, may stay on the CPU beside tensors on 'tpu'"
            )


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SINGLE = jax.tree.structure(0)


class _Known:
    """A repeated call: its program, the tree of its results, and its op once it was recorded without derivatives."""

    __slots__ = ("key", "op", "program", "single", "tree")

    def __init__(self, program: Program, tree: Any) -> None:
        self.program = program
        self.tree = tree
        self.single = tree == _SINGLE
        self.op: Any = None
        self.key = ""

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the results for tensors of this signature."""
        if differentiates(tensors):
            results = apply(self.program, tensors)
        elif self.op is not None:  # only if it returns one array
            return self.op(*tensors, self.key)
        else:
            results = recorded(self.program, tensors)
            if self.single and not self.program.aliases:
                call = self.program.call(tensors)
                self.op, self.key = call.op, call.key
        return results[0] if self.single else jax.tree.unflatten(self.tree, results)


_SHARDING = "rows k, k columns -> rows columns"
_PADDING = "rows columns=0 -> rows"
_R = TypeVar("_R")


def _parsed(parse: Callable[[str], _R], name: str, option: str, rule: Any, example: str) -> _R | None:
    """Parse a rule given as an option; None for no rule."""
    if rule is None:
        return None
    if not isinstance(rule, str):
        raise TypeError(f"{name}: {option} is a text such as {example!r}, not {rule!r}")
    try:
        return parse(rule)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def call_kernel(kernel: CustomKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel. A repeated call with plain tensors alone takes one look-up, and then runs its op."""
    captured = kernel._captured.now()
    if captured:
        guard_graph(kernel._captured.now, f"what the kernel {kernel.name} captures")
    if not kwargs:
        try:
            repeated = kernel._known.get((*[(t.shape, t.dtype) for t in args], captured))
        except (AttributeError, TypeError):
            repeated = None
        if repeated is not None:
            return repeated.run(args)
    dynamo = set_frame_callback(None)  # after a graph break it would compile the code that JAX traces
    try:
        return kernel._call(args, kwargs)
    finally:
        set_frame_callback(dynamo)
