"""`_foreach_*` ops: each applies the op of its name to every element of its lists, so it uses that op's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from xdsl.ir import SSAValue

from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import KINDS, Scalar
from lazytpu.aten.schema import signature
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

UNARY = (
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "clone",
    "zero",
    "max",
)

# Overload of _foreach_<packet> -> the op on one element. maximum and minimum with scalars are clamps
# (native_functions.yaml: foreach_tensor_clamp_min_scalar_kernel_slow).
ELEMENT = {
    **{f"{name}.default": f"{name}.default" for name in UNARY},
    **{f"{name}.Scalar": f"{name}.Scalar" for name in ("add", "sub", "mul", "div")},
    **{f"{name}.List": f"{name}.Tensor" for name in ("add", "sub", "mul", "div", "clamp_min", "clamp_max")},
    **{f"{name}.ScalarList": f"{name}.Scalar" for name in ("add", "sub", "mul", "div")},
    **{f"{name}.Tensor": f"{name}.Tensor" for name in ("add", "mul", "div")},
    **{f"{name}.{kind}": f"{name}.default" for name in ("clamp_min", "clamp_max") for kind in ("Scalar", "ScalarList")},
    **{f"{name}.List": f"{name}.default" for name in ("maximum", "minimum")},
    **{f"maximum.{kind}": "clamp_min.default" for kind in ("Scalar", "ScalarList")},
    **{f"minimum.{kind}": "clamp_max.default" for kind in ("Scalar", "ScalarList")},
    "pow.List": "pow.Tensor_Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.ScalarList": "pow.Tensor_Scalar",
    "pow.ScalarAndTensor": "pow.Scalar",
    **{f"{name}.{kind}": f"{name}.default" for name in ("addcmul", "addcdiv") for kind in ("Scalar", "ScalarList")},
    "lerp.List": "lerp.Tensor",
    "lerp.Scalar": "lerp.Scalar",
    "lerp.ScalarList": "lerp.Scalar",
    "norm.Scalar": "linalg_vector_norm.default",
    "mm.default": "mm.default",
    "copy.default": "copy.default",
}

SHAPING = {"ord", "exponent"}  # numbers that select the formula: part of the program until they vary


def overload(name: str) -> OpOverload:
    """The ATen overload "packet.overload"."""
    packet, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), kind)


def apply(b: Builder, op: OpOverload, arguments: dict[str, Any], out: tuple[str, tuple[int, ...]]) -> SSAValue:
    """Apply `op` to arguments by name, with defaults for missing ones."""
    s = signature(op)
    defaults = {
        name: Scalar(KINDS[type(value)], value) if name in s.numbers and type(value) in KINDS else value
        for name, value in s.defaults.items()
    }
    return evaluate(b, op, {**defaults, **arguments}, [out]).returns[0]


def _foreach(name: str, element: str) -> None:
    list_signature = signature(overload(f"_foreach_{name}"))
    op = overload(element)
    names = signature(op).names
    # Arguments are matched by name, else by position: `scalar` is `other` of add, `min` of clamp_min.
    target = {n: n if n in names else names[i] for i, n in enumerate(list_signature.names)}

    @rule(
        f"aten._foreach_{name}", numbers=list_signature.numbers - SHAPING, specialized=list_signature.numbers & SHAPING
    )
    def foreach(b: Builder, **arguments: Any) -> tuple[list[SSAValue]]:
        outs = list(b.out)
        return (
            [
                apply(b, op, {target[n]: v[i] if isinstance(v, list) else v for n, v in arguments.items()}, out)
                for i, out in enumerate(outs)
            ],
        )


for _name, _element in ELEMENT.items():
    _foreach(_name, _element)


def _with_tensor_of_numbers(packet: str) -> None:
    op = overload(f"{packet}.default")

    @rule(f"aten._foreach_{packet}.Tensor")
    def foreach(
        b: Builder, self: list[SSAValue], tensor1: list[SSAValue], tensor2: list[SSAValue], scalars: SSAValue
    ) -> tuple[list[SSAValue]]:
        results: list[SSAValue] = []
        for i, out in enumerate(list(b.out)):
            value = b.reshape(b.slice(scalars, (i,), (i + 1,)), ())
            arguments = {"self": self[i], "tensor1": tensor1[i], "tensor2": tensor2[i], "value": value}
            results.append(apply(b, op, arguments, out))
        return (results,)


_with_tensor_of_numbers("addcmul")
_with_tensor_of_numbers("addcdiv")


@rule("aten._foreach_powsum.Scalar", specialized=("ord",))
def powsum(b: Builder, self: list[SSAValue], ord: Scalar, dtype: torch.dtype | None) -> tuple[list[SSAValue]]:
    """The sums of |x|^ord: norms before the root."""
    results: list[SSAValue] = []
    for x, (out, _) in zip(self, list(b.out), strict=True):
        x = b.convert(x, out if dtype is not None and not is_complex(dtype_of(x)) else wide(dtype_of(x)))
        size = b.abs(x)
        meta = (dtype_of(size), shape_of(size))
        raised = apply(b, torch.ops.aten.pow.Tensor_Scalar, {"self": size, "exponent": ord}, meta)
        results.append(b.convert(b.reduce("add", raised, range(len(meta[1]))), out))
    return (results,)


@rule("aten._amp_foreach_non_finite_check_and_unscale.default")
def unscale(
    b: Builder, self: list[SSAValue], found_inf: SSAValue, inv_scale: SSAValue
) -> tuple[list[SSAValue], SSAValue]:
    """(each gradient times inv_scale; found_inf, set to 1 if any gradient has an infinity or NaN)
    (`_amp_foreach_non_finite_check_and_unscale_cpu_kernel` in AmpKernels.cpp)."""
    unscaled: list[SSAValue] = []
    finite: SSAValue | None = None
    for grad in self:
        x = b.convert(grad, wide(dtype_of(grad)))
        good = b.reduce("and", b.unary("is_finite", x), range(len(shape_of(x))))
        finite = good if finite is None else b.and_(finite, good)
        factor = b.broadcast_to(b.convert(b.reshape(inv_scale, ()), dtype_of(x)), shape_of(x))
        unscaled.append(b.convert(b.mul(x, factor), dtype_of(grad)))
    if finite is None:
        return unscaled, found_inf
    return unscaled, b.select(finite, found_inf, full(b, 1, found_inf))


@rule("aten._amp_update_scale.default")
def update_scale(
    b: Builder,
    self: SSAValue,
    growth_tracker: SSAValue,
    found_inf: SSAValue,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[SSAValue, SSAValue]:
    """(the next loss scale, the count of good steps). The scale backs off after a step with infinities, and grows after
    `growth_interval` good steps in a row unless it would overflow (`_amp_update_scale_cpu_kernel` in
    AmpKernels.cpp)."""
    shape = shape_of(self)
    bad = b.broadcast_to(b.reshape(b.compare("NE", found_inf, full(b, 0, found_inf)), ()), shape)
    count = b.add(growth_tracker, full(b, 1, growth_tracker))
    due = b.compare("EQ", count, full(b, growth_interval, count))
    grown = b.mul(self, full(b, scale_growth_factor, self))
    grown = b.select(b.and_(due, b.unary("is_finite", grown)), grown, self)
    scale = b.select(bad, b.mul(self, full(b, scale_backoff_factor, self)), grown)
    tracker = b.select(b.or_(bad, due), full(b, 0, count), count)
    return scale, tracker
