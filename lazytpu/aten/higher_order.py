"""Rules of torch's higher-order ops (cond, while_loop, scan, map, associative_scan), whose arguments are functions.

A rule gets each function as a `Region`: `region(b, *values)` imports it into the region that `b` fills. How, is the
business of whoever holds the function: `Expansion` runs it on meta tensors.

    @higher_order("cond")
    def cond(b, draw, pred, true_fn, false_fn, operands): ...

Values are read as they are when the op runs, and a function may not write to what it is given: AOTAutograd returns such
writes as results before they come here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from xdsl.ir import SSAValue

from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

Rng: TypeAlias = "tuple[SSAValue, SSAValue] | None"
"""(seed, offset) of random draws, 0-d ui64."""

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: multiples of it are far apart, so that each iteration has a seed of its own
(G. Steele et al., Fast splittable pseudorandom number generators, OOPSLA 2014)."""


@dataclass(frozen=True)
class Region:
    """A function among the arguments of a higher-order op. `fill(b, rng, arguments)` imports a call of it, where
    `arguments` are values and Python numbers; returns its results, flattened."""

    fill: Callable[[Builder, Rng, Sequence[Any]], list[SSAValue]]

    def __call__(self, b: Builder, rng: Rng, *arguments: Any) -> list[SSAValue]:
        return self.fill(b, rng, arguments)


RULES: dict[str, Callable[..., list[SSAValue]]] = {}


def higher_order(name: str) -> Callable[[Any], Any]:
    """Register the decorated function as the rule of a higher-order op: rule(b, rng, *arguments) -> results. Functions
    among the arguments are Regions."""

    def register(function: Callable[..., list[SSAValue]]) -> Callable[..., list[SSAValue]]:
        if name in RULES:
            raise ValueError(f"the higher-order op {name} already has a rule, in {RULES[name].__module__}")
        RULES[name] = function
        return function

    return register


def rule_of(name: str) -> Callable[..., list[SSAValue]]:
    """The rule of a higher-order op. Raises NotImplementedError when there is none."""
    if name not in RULES:
        raise NotImplementedError(
            f"the higher-order op '{name}' has no rule on 'tpu'; those that have one are {', '.join(sorted(RULES))}. "
            "To add one, see @higher_order in lazytpu/aten/higher_order.py"
        )
    return RULES[name]


@higher_order("cond")
def cond(
    b: Builder, rng: Rng, pred: Any, true_fn: Region, false_fn: Region, operands: Sequence[Any] = ()
) -> list[SSAValue]:
    """A branch. Both sides draw the same random numbers, if any."""
    if not isinstance(pred, SSAValue):
        return (true_fn if pred else false_fn)(b, rng, *operands)
    return b.if_(
        _truth(b, pred), lambda inner: true_fn(inner, rng, *operands), lambda inner: false_fn(inner, rng, *operands)
    )


@higher_order("while_loop")
def while_loop(
    b: Builder,
    rng: Rng,
    cond_fn: Region,
    body_fn: Region,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    mutated_arg_indices: str = "",
) -> list[SSAValue]:
    """A loop. The condition draws no random numbers."""
    _only_values("while_loop", carried_inputs)
    if mutated_arg_indices:
        raise NotImplementedError("while_loop on 'tpu' cannot write to its inputs: return the new values instead")

    def goes(inner: Builder, number: SSAValue, *values: SSAValue) -> SSAValue:
        (truth,) = cond_fn(inner, None, *values, *additional_inputs)
        return _truth(inner, truth)

    def step(inner: Builder, number: SSAValue, *values: SSAValue) -> list[SSAValue]:
        after = body_fn(inner, of_iteration(inner, rng, number), *values, *additional_inputs)
        return [inner.add(number, inner.constant(1, "ui64")), *after]

    return b.while_([b.constant(0, "ui64"), *carried_inputs], goes, step)[1:]


@higher_order("scan")
def scan(
    b: Builder,
    rng: Rng,
    combine_fn: Region,
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> list[SSAValue]:
    """A loop over the rows of `xs`: the last carry, then the outputs of all steps, stacked."""
    _only_values("scan", (*init, *xs))
    number = b.constant(0, "ui64")

    def step(inner: Builder, number: SSAValue, *values: SSAValue) -> list[SSAValue]:
        after = combine_fn(inner, of_iteration(inner, rng, number), *values, *additional_inputs)
        return [inner.add(number, inner.constant(1, "ui64")), *after]

    (_, *last), outputs = b.scan([number, *init], xs, step, shape_of(xs[0])[0])
    return [*last, *outputs]


@higher_order("map_impl")
def map_(b: Builder, rng: Rng, f: Region, xs: Sequence[Any], pos_args: Sequence[Any] = ()) -> list[SSAValue]:
    """A function of each row of `xs`, in a loop."""
    return scan(b, rng, f, (), xs, pos_args)


@higher_order("associative_scan")
def associative_scan(
    b: Builder, rng: Rng, combine_fn: Region, xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> list[SSAValue]:
    """Running combinations of the rows of `xs`. `combine_fn` is pointwise: it takes any number of rows at once."""
    _only_values("associative_scan", xs)

    def combine(left: Sequence[SSAValue], right: Sequence[SSAValue]) -> list[SSAValue]:
        return combine_fn(b, rng, *left, *right, *additional_inputs)

    return b.associative_scan(combine, xs)


@higher_order("while_loop_stack_output")
def while_loop_stack_output(b: Builder, rng: Rng, *arguments: Any) -> list[SSAValue]:
    """The gradient of while_loop keeps the values of all iterations, as many as there happen to be."""
    raise NotImplementedError(
        "the gradient of while_loop has no fixed shape on 'tpu': how many iterations there are is known only when they "
        "have run. Use torch's scan, whose length is fixed, or compute the loop under torch.no_grad()"
    )


def of_iteration(b: Builder, rng: Rng, number: SSAValue) -> Rng:
    """What an iteration of a loop draws from: a seed of its own."""
    if rng is None:
        return None
    seed, offset = rng
    distance = b.mul(b.add(number, b.constant(1, "ui64")), b.constant(GOLDEN, "ui64"))
    return b.add(seed, distance), offset


def _truth(b: Builder, value: Any) -> SSAValue:
    """A condition as a 0-d i1: of one element, true unless it is 0."""
    if not isinstance(value, SSAValue):
        return b.constant(bool(value), "i1")
    scalar = b.reshape(value, ())
    dtype = dtype_of(scalar)
    return scalar if dtype == "i1" else b.compare("NE", scalar, b.constant(0, dtype))


def _only_values(op: str, inputs: Sequence[Any]) -> None:
    for value in inputs:
        if not isinstance(value, SSAValue):
            raise NotImplementedError(
                f"{op} on 'tpu' carries tensors; got {value!r}. Make it a tensor: torch.tensor({value!r}, device='tpu')"
            )
