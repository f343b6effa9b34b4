"""Matrix products: one `dot_general` each, without transposing the operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.promotion import broadcast_shape, promote
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import FLOATS8, dtype_of, is_complex, is_integer, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

ACCUMULATOR = {"f16": "f32", "bf16": "f32"}
"""Products of f16 and bf16 are accumulated in f32 and rounded once. XLA:CPU is also faster with an f32 result: a
512x768x768 product of bf16 takes 1.7 ms of CPU time, against 6.3 ms with a bf16 result (f16: 6.0 ms either way)."""


def contract(
    b: Builder,
    x: SSAValue,
    y: SSAValue,
    *,
    over: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> SSAValue:
    """Σ x·y over the dims `over` of x and y, at the precision in effect; in f32 for f16, bf16 and 8-bit floats.
    Empty products may be of bool, and are then of ui8."""
    if dtype_of(x) in FLOATS8:
        # bf16 holds each 8-bit float; of those that are exponents alone, denormal numbers, which a TPU takes for zeros.
        wide = "f32" if "f8e8m0fnu" in (dtype_of(x), dtype_of(y)) else "bf16"
        x, y = b.convert(x, wide), b.convert(y, wide)
    if dtype_of(x) == "i1":
        x, y = b.convert(x, "ui8"), b.convert(y, "ui8")
    dtype = dtype_of(x)
    exact = dtype in ("f64", "c128") or is_integer(dtype)
    precision = "default" if dtype in ACCUMULATOR else "highest" if exact else b.precision
    to = ACCUMULATOR.get(dtype, dtype)
    return b.dot_general(x, y, batch[0], batch[1], over[0], over[1], precision=precision, dtype=to)


def affine(b: Builder, self: SSAValue, product: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """beta * self + alpha * product in the product's dtype, with `self` broadcast to its shape.

    As in BLAS, `self` is ignored when beta is 0, even where it is NaN.
    """
    dtype, shape = dtype_of(product), shape_of(product)
    if alpha.value != 1:
        product = b.mul(product, b.broadcast_to(b.scalar(alpha, dtype), shape))
    if beta.value == 0:
        return product
    term = b.convert(self, dtype)
    if beta.value != 1:
        factor = b.scalar(beta, dtype)
        term = b.mul(term, b.broadcast_to(factor, shape_of(term)))
        if beta.value is None:
            absent = b.compare("EQ", factor, b.constant(0, dtype))
            term = b.select(absent, full(b, 0, term), term)
    return b.add(b.broadcast_to(term, shape), product)


@rule("aten.mm.default", "aten._int_mm.default", "aten.mm.dtype")
def mm(b: Builder, self: SSAValue, mat2: SSAValue, out_dtype: Any = None) -> SSAValue:
    """[n, k] by [k, m]. `_int_mm` takes int8 and returns int32; `mm.dtype` takes f16 or bf16, returns `out_dtype`."""
    if b.out[0][0] == "i32" and dtype_of(self) == "i8":
        return b.dot_general(self, mat2, (), (), (1,), (0,), dtype="i32")
    return b.convert(contract(b, self, mat2, over=((1,), (0,))), b.out[0][0])


@rule("aten.bmm.default", "aten.bmm.dtype")
def bmm(b: Builder, self: SSAValue, mat2: SSAValue, out_dtype: Any = None) -> SSAValue:
    """[batch, n, k] by [batch, k, m]."""
    return b.convert(_batched(b, self, mat2), b.out[0][0])


def _batched(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    return contract(b, x, y, over=((2,), (1,)), batch=((0,), (0,)))


@rule("aten._scaled_mm.default")
def scaled_mm(
    b: Builder,
    self: SSAValue,
    mat2: SSAValue,
    scale_a: SSAValue,
    scale_b: SSAValue,
    bias: SSAValue | None,
    scale_result: SSAValue | None,
    out_dtype: Any,
    use_fast_accum: bool,
) -> SSAValue:
    """scale_a * scale_b * (self @ mat2) + bias of 8-bit floats, in f32. A scale is for the whole operand, or for each
    row of self and each column of mat2. As on the CPU, `scale_result` is ignored."""
    product, *scales = promote(b, contract(b, self, mat2, over=((1,), (0,))), scale_a, scale_b, to="f32")
    # Scales on different sides of 1 are multiplied first, else one after the other: no intermediate result leaves f32
    # where the last one does not.
    one = full(b, 1.0, product)
    are_large = [b.compare("GT", b.abs(scale), one) for scale in scales]
    first, second = scales
    together = b.mul(product, b.mul(first, second))
    product = b.select(b.compare("EQ", *are_large), b.mul(b.mul(product, first), second), together)
    if bias is not None:
        product = b.add(product, *promote(b, bias, to="f32", shape=shape_of(product)))
    return b.convert(product, b.out[0][0])


@rule("aten.addmm.default", "aten.addmm.dtype", numbers=("alpha", "beta"))
def addmm(
    b: Builder,
    self: SSAValue,
    mat1: SSAValue,
    mat2: SSAValue,
    beta: Scalar,
    alpha: Scalar,
    out_dtype: Any = None,
) -> SSAValue:
    """beta * self + alpha * mat1 @ mat2."""
    return b.convert(affine(b, self, contract(b, mat1, mat2, over=((1,), (0,))), beta, alpha), b.out[0][0])


@rule("aten.baddbmm.default", "aten.baddbmm.dtype", numbers=("alpha", "beta"))
def baddbmm(
    b: Builder,
    self: SSAValue,
    batch1: SSAValue,
    batch2: SSAValue,
    beta: Scalar,
    alpha: Scalar,
    out_dtype: Any = None,
) -> SSAValue:
    """beta * self + alpha * batch1 @ batch2."""
    return b.convert(affine(b, self, _batched(b, batch1, batch2), beta, alpha), b.out[0][0])


@rule("aten.addbmm.default", numbers=("alpha", "beta"))
def addbmm(b: Builder, self: SSAValue, batch1: SSAValue, batch2: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """beta * self + alpha * Σ batch1[i] @ batch2[i]: the batch is one more contracted dimension."""
    product = contract(b, batch1, batch2, over=((0, 2), (0, 1)))
    return b.convert(affine(b, self, product, beta, alpha), b.out[0][0])


@rule("aten.mv.default")
def mv(b: Builder, self: SSAValue, vec: SSAValue) -> SSAValue:
    """[n, k] by [k]."""
    return b.convert(contract(b, self, vec, over=((1,), (0,))), b.out[0][0])


@rule("aten.addmv.default", numbers=("alpha", "beta"))
def addmv(b: Builder, self: SSAValue, mat: SSAValue, vec: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """beta * self + alpha * mat @ vec."""
    return b.convert(affine(b, self, contract(b, mat, vec, over=((1,), (0,))), beta, alpha), b.out[0][0])


@rule("aten.addr.default", numbers=("alpha", "beta"))
def addr(b: Builder, self: SSAValue, vec1: SSAValue, vec2: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """beta * self + (alpha * vec1) ⊗ vec2; the order matters where a product overflows."""
    dtype, shape = b.out[0]
    if dtype == "i1":
        outer = b.and_(b.broadcast_in_dim(vec1, shape, [0]), b.broadcast_in_dim(vec2, shape, [1]))
        outer = b.and_(outer, b.broadcast_to(b.scalar(alpha, "i1"), shape))
        term = b.broadcast_to(b.and_(self, b.broadcast_to(b.scalar(beta, "i1"), shape_of(self))), shape)
        return b.or_(term, outer)
    wide = ACCUMULATOR.get(dtype, dtype)
    vec1 = b.convert(vec1, wide)
    if alpha.value != 1:
        vec1 = b.mul(vec1, b.broadcast_to(b.scalar(alpha, wide), shape_of(vec1)))
    columns = b.broadcast_in_dim(vec1, shape, [0])
    rows = b.broadcast_in_dim(b.convert(vec2, wide), shape, [1])
    return b.convert(affine(b, self, b.mul(columns, rows), beta, Scalar("int", 1)), dtype)


@rule("aten.dot.default")
def dot(b: Builder, self: SSAValue, tensor: SSAValue) -> SSAValue:
    """Σ self·tensor of two vectors."""
    return b.convert(contract(b, self, tensor, over=((0,), (0,))), b.out[0][0])


@rule("aten.vdot.default")
def vdot(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Σ conj(self)·other of two vectors."""
    if is_complex(dtype_of(self)):
        self = b.binary("complex", b.unary("real", self), b.neg(b.unary("imag", self)))
    return b.convert(contract(b, self, other, over=((0,), (0,))), b.out[0][0])


@rule("aten.linear_backward.default")
def linear_backward(
    b: Builder, self: SSAValue, grad_output: SSAValue, weight: SSAValue, output_mask: Sequence[bool]
) -> tuple[SSAValue | None, SSAValue | None, SSAValue | None]:
    """Gradients of `self @ weight.T + bias`. All dims of `self` and `grad_output` but the last are rows."""
    rows = tuple(range(len(shape_of(grad_output)) - 1))
    dtype = dtype_of(self)
    of_self = of_weight = of_bias = None
    if output_mask[0]:
        of_self = b.convert(contract(b, grad_output, weight, over=((len(rows),), (0,))), dtype)
    if output_mask[1]:
        of_weight = b.convert(contract(b, grad_output, self, over=(rows, rows)), dtype)
    if output_mask[2]:
        of_bias = b.convert(b.reduce("add", b.convert(grad_output, ACCUMULATOR.get(dtype, dtype)), rows), dtype)
    return of_self, of_weight, of_bias


@rule("aten._trilinear.default")
def trilinear(
    b: Builder,
    i1: SSAValue,
    i2: SSAValue,
    i3: SSAValue,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> SSAValue:
    """Σ i1·i2·i3 over `sumdim`, after each operand is expanded with dims of size 1 at those its list names."""
    wide = ACCUMULATOR.get(dtype_of(i1), dtype_of(i1))
    operands = ((i1, expand1), (i2, expand2), (i3, expand3))
    spread = [b.reshape(b.convert(x, wide), _with_ones(shape_of(x), at)) for x, at in operands]
    shape = broadcast_shape(*map(shape_of, spread))
    first, second, third = (b.broadcast_to(x, shape) for x in spread)
    product = b.mul(b.mul(first, second), third)
    return b.convert(b.reduce("add", product, sorted(sumdim)), b.out[0][0])


def _with_ones(shape: Sequence[int], at: Sequence[int]) -> list[int]:
    result = list(shape)
    for dim in sorted(at):
        result.insert(dim, 1)
    return result


@rule("aten._weight_int8pack_mm.default")
def by_int8_weights(b: Builder, self: SSAValue, mat2: SSAValue, scales: SSAValue) -> SSAValue:
    """self [M, K] times the transpose of mat2 [N, K], which is i8, with a scale for each of the N columns; the scales
    are applied to the sums. Each i8 number is one of bf16, too."""
    total = contract(b, self, b.convert(mat2, dtype_of(self)), over=([1], [1]))
    factor = b.broadcast_in_dim(b.convert(scales, dtype_of(total)), shape_of(total), [1])
    return b.convert(b.mul(total, factor), b.out[0][0])
