"""Elementwise ops. Ops that map 0 to 0 act on the values alone; sums and products combine two sets of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.ops.data_dependent import nonzero
from lazytpu.frontend.sparse.parts import (
    Kernels,
    assign,
    check_cast,
    coalesce,
    find,
    indices_of,
    into,
    like,
    make,
    positions,
    sizes,
    values_of,
)
from lazytpu.frontend.sparse.refusals import refuse

aten = torch.ops.aten

UNARY = """abs asin asinh atan atanh ceil conj_physical deg2rad erf erfinv expm1 floor frac isinf isnan isneginf
isposinf log1p nan_to_num rad2deg relu round round.decimals sgn sign signbit sin sinh sqrt tan tanh trunc""".split()


def on_values(op: Any) -> Callable[..., Tensor]:
    """Return the kernel of an op f with f(0) = 0: f of the values, after duplicates are summed."""

    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tensor = coalesce(tensor)
        return like(tensor, op(values_of(tensor), *args, **kwargs))

    return kernel


def in_place(functional: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a kernel that stores a functional one's result in its first argument, sparse or dense."""

    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = functional(tensor, *args, **kwargs)
        check_cast(result, tensor)
        if tensor.is_sparse:
            return assign(tensor, result)
        return tensor.copy_(result.to_dense() if result.is_sparse else result)

    return kernel


def with_out(functional: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a kernel that stores a functional one's result in out=."""

    def kernel(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return into(out, functional(*args, **kwargs))

    return kernel


def neg(tensor: Tensor) -> Tensor:
    """The kernel of aten::neg."""
    return like(tensor, -values_of(tensor))


def power(tensor: Tensor, exponent: Any) -> Tensor:
    """The kernel of aten::pow.Tensor_Scalar; 0 to the power 0 is 1 everywhere, so there is no sparse result."""
    if exponent == 0:
        raise RuntimeError("pow: a sparse tensor to the power 0 is dense: use x.to_dense()")
    tensor = coalesce(tensor)
    return like(tensor, values_of(tensor) ** exponent)


def threshold_backward(grad: Tensor, tensor: Tensor, threshold: Any) -> Tensor:
    """The kernel of aten::threshold_backward: the gradient of relu at the indices of its result."""
    from lazytpu.frontend.sparse.parts import look_up

    tensor = coalesce(tensor)
    grads = look_up(grad, positions(indices_of(tensor), sizes(tensor)))
    return like(tensor, aten.threshold_backward.default(grads, values_of(tensor), threshold))


def add(one: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    """The kernel of aten::add.Tensor: sparse and sparse is sparse, dense and sparse is dense."""
    if not _is_sparse(one):
        return _add_to_dense(one, other, alpha)
    if not _is_sparse(other):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if one.shape != other.shape:
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same sizes, but {list(one.shape)} != {list(other.shape)}"
        )
    if one.sparse_dim() != other.sparse_dim():
        raise RuntimeError(
            "add: expected 'self' and 'other' to have same number of sparse dims, but "
            f"{one.sparse_dim()} != {other.sparse_dim()}"
        )
    dtype = torch.result_type(one, other)
    added = values_of(other).to(dtype)  # before the product: a negative alpha wraps in an unsigned dtype
    if alpha != 1:
        added = (added * alpha).to(dtype)
    values = torch.cat([values_of(one).to(dtype), added])
    joined = make(torch.cat([indices_of(one), indices_of(other)], 1), values, one.shape)
    return coalesce(joined) if one.is_coalesced() and other.is_coalesced() else joined


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_sparse


def _is_number(value: Any) -> bool:
    """Return whether a value is a Python number, or a dense 0-d tensor on any device."""
    return not isinstance(value, Tensor) or (value.dim() == 0 and not value.is_sparse)


def _add_to_dense(dense: Tensor, sparse: Tensor, alpha: Any) -> Tensor:
    if dense.device != sparse.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{dense.device} and {sparse.device}!"
        )
    shape = torch.broadcast_shapes(dense.shape, sparse.shape)
    if shape != sparse.shape:
        raise RuntimeError(
            f"add: expected 'other' to have the size of the dense tensor, {list(dense.shape)}, got {list(sparse.shape)}"
        )
    dtype = torch.result_type(dense, sparse)
    size = sizes(sparse)
    rows = dense.to(dtype).expand(shape).reshape(torch.Size(size).numel(), *shape[len(size) :])
    values = values_of(sparse).to(dtype)
    if dtype is torch.bool:
        from lazytpu.frontend.sparse.structure import to_dense

        return dense | to_dense(sparse)
    return rows.index_add(0, positions(indices_of(sparse), size), values, alpha=alpha).reshape(shape)


def add_(one: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    """The kernel of aten::add_.Tensor, which optimizers call with a dense parameter and its sparse gradient."""
    result = add(one, other, alpha=alpha)
    check_cast(result, one)
    return assign(one, result) if one.is_sparse else one.copy_(result)


def sub(one: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    """The kernel of aten::sub.Tensor."""
    return add(one, other, alpha=-alpha)


def sub_(one: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    """The kernel of aten::sub_.Tensor."""
    return add_(one, other, alpha=-alpha)


def mul(one: Tensor, other: Tensor) -> Tensor:
    """The kernel of aten::mul.Tensor: by a number, a dense tensor that broadcasts to it, or a sparse one; the result is
    sparse."""
    if not _is_sparse(one):
        one, other = other, one
    if _is_number(other):
        return like(one, values_of(one) * other)
    if not other.is_sparse:
        return _mul_by_dense(one, other)
    if one.shape != other.shape or one.sparse_dim() != other.sparse_dim():
        refuse("the product of sparse tensors of different shapes or numbers of sparse dims")
    one, other = coalesce(one), coalesce(other)
    size = sizes(one)
    place, present = find(positions(indices_of(one), size), positions(indices_of(other), size))
    common = nonzero(present).reshape(-1)
    values = values_of(one)[common] * values_of(other)[place[common]]
    return make(indices_of(one)[:, common], values, one.shape)


def _mul_by_dense(one: Tensor, dense: Tensor) -> Tensor:
    if torch.broadcast_shapes(one.shape, dense.shape) != one.shape:
        refuse("the product of a sparse tensor and a dense one that is larger")
    factors = dense.expand(one.shape)[tuple(indices_of(one).unbind(0))]
    return like(one, values_of(one) * factors)


def div(one: Tensor, other: Tensor, *, rounding_mode: str | None = None) -> Tensor:
    """The kernel of aten::div by a number."""
    if not (_is_sparse(one) and _is_number(other)):
        raise RuntimeError("Sparse division requires a dense zero-dim tensor (a number) as divisor")
    if rounding_mode is not None:
        one = coalesce(one)
    return like(one, torch.div(values_of(one), other, rounding_mode=rounding_mode))


def floor_divide(one: Tensor, other: Tensor) -> Tensor:
    """The kernel of aten::floor_divide by a number."""
    return div(one, other, rounding_mode="floor")


def _variants(name: str, functional: Callable[..., Tensor], out: str | None = None) -> Kernels:
    """Return the kernels of an op, its in-place form and its out= form, as far as torch has them."""
    base, _, overload = name.partition(".")
    kernels: Kernels = {name: functional}
    named = {f"{base}_" + (f".{overload}" if overload else ""): in_place, f"{base}.{out or 'out'}": with_out}
    for variant, derive in named.items():
        packet = getattr(aten, variant.partition(".")[0], None)
        if packet is not None and (variant.partition(".")[2] or "default") in packet.overloads():
            kernels[variant] = derive(functional)
    return kernels


def _unary(name: str) -> Kernels:
    base, _, overload = name.partition(".")
    op = getattr(getattr(aten, base), overload or "default")
    kernels = _variants(name, on_values(op), f"{overload}_out" if overload else "out")
    in_place = f"{base}_" + (f".{overload}" if overload else "")
    if in_place in kernels and base != "conj_physical":
        kernels[in_place] = _of_coalesced(base, kernels[in_place])
    return kernels


def _of_coalesced(name: str, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the in-place kernel of an op that torch rejects for uncoalesced tensors before any other check."""

    def checked(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not tensor.is_coalesced():
            raise RuntimeError(f"{name}_ requires coalesced input")
        if name == "abs" and tensor.is_complex():
            raise RuntimeError("In-place abs is not supported for complex tensors.")
        return kernel(tensor, *args, **kwargs)

    return checked


KERNELS: Kernels = {
    **{k: v for name in UNARY for k, v in _unary(name).items()},
    **_variants("neg", neg),
    **_variants("pow.Tensor_Scalar", power, "Tensor_Scalar_out"),
    **_variants("add.Tensor", add),
    **_variants("sub.Tensor", sub),
    **_variants("mul.Tensor", mul),
    **_variants("div.Tensor", div),
    **_variants("div.Tensor_mode", div, "out_mode"),
    **_variants("floor_divide", floor_divide),
    "floor_divide_.Tensor": in_place(floor_divide),
    "add_.Tensor": add_,
    "sub_.Tensor": sub_,
    "threshold_backward": threshold_backward,
}
