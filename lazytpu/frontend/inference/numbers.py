"""Meta functions of random samples, and of ops that the CPU computes only for some dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.infer import OVERRIDES, override

aten = torch.ops.aten

# dtype -> the largest n up to which its integers are exact (`at::scalar_tensor` of n, and of the n - 1 numbers before
# it).
_COUNTED = {torch.float16: 2**11 + 1, torch.float32: 2**24 + 1, torch.float64: 2**53 + 1}


def _name(dtype: torch.dtype) -> str:
    """Return torch's C++ name of a dtype: "Long", "ComplexFloat"."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


@override("aten.multinomial.default")
def multinomial(self: torch.Tensor, num_samples: int, replacement: bool = False, generator: Any = None) -> torch.Tensor:
    """int64 [*, num_samples]. Raises the CPU's errors (`multinomial_out` in Distributions.cpp)."""
    if self.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not self.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {_name(self.dtype)}")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if self.shape[-1] > 2**24:
        raise RuntimeError("number of categories cannot exceed 2^24")
    return torch.empty((*self.shape[:-1], num_samples), dtype=torch.int64, device="meta")


@override("aten.full.default")
def full(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Infer complex64 for a complex number, also if the default dtype is float16, where the meta function infers
    complex32 (`infer_full_options`)."""
    if dtype is None and isinstance(fill_value, complex) and torch.get_default_dtype() is torch.float16:
        dtype = torch.complex64
    return aten.full.default(size, fill_value, dtype=dtype, **options)


@override("aten.randperm.default", "aten.randperm.generator")
def randperm(n: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """A vector of n numbers, all of which the dtype must represent."""
    kind = torch.int64 if dtype is None else dtype
    if n < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {n}: [{n}]")
    if kind.is_complex or kind is torch.bool:
        raise NotImplementedError(f"\"randperm\" not implemented for '{_name(kind)}'")
    if n > _COUNTED.get(kind, n):
        raise RuntimeError(f"n cannot be greater than {_COUNTED[kind]} for {_name(kind)} type.")
    if not kind.is_floating_point and n > 0:
        aten.scalar_tensor.default(n - 1, dtype=kind, device="cpu")  # raises the CPU's error
    return torch.empty(n, dtype=kind, device="meta")


def _drawn(kernel: str, parameter: torch.Tensor) -> None:
    """Raise NotImplementedError for a dtype in which the CPU's `kernel` draws no samples."""
    if parameter.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{_name(parameter.dtype)}'")


@override("aten.binomial.default")
def binomial(count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
    """torch has no meta function for it: return the broadcast shape."""
    for argument, tensor in (("count", count), ("prob", prob)):
        if not tensor.is_floating_point():
            kind = _name(tensor.dtype)
            raise ValueError(f"binomial only supports floating-point dtypes for {argument}, got: {kind}")
    if count.dtype != prob.dtype:
        raise RuntimeError(f"Found dtype {_name(prob.dtype)} but expected {_name(count.dtype)}")
    _drawn("binomial_cpu", count)
    return torch.empty_like(aten.add.Tensor(count, prob))


@override("aten._sample_dirichlet.default")
def sample_dirichlet(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    """torch has no meta function for it."""
    _drawn("dirichlet", self)
    return torch.empty(self.shape, dtype=self.dtype, device="meta")


@override("aten._standard_gamma.default")
def standard_gamma(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    """Return a number for each shape parameter."""
    _drawn("gamma_cpu", self)
    return aten._standard_gamma.default(self)


@override("aten._dirichlet_grad.default")
def dirichlet_grad(x: torch.Tensor, alpha: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """torch has no meta function for it."""
    return torch.empty_like(aten.add.Tensor(aten.add.Tensor(x, alpha), total))


@override("aten._standard_gamma_grad.default")
def standard_gamma_grad(self: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """torch has no meta function for it: return the broadcast shape, in row-major order."""
    if self.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"\"_standard_gamma_grad_cpu\" not implemented for '{_name(self.dtype)}'")
    if self.dtype != output.dtype:
        raise RuntimeError(f"Found dtype {_name(output.dtype)} but expected {_name(self.dtype)}")
    return torch.empty(torch.broadcast_shapes(self.shape, output.shape), dtype=self.dtype, device="meta")


def _check_parts(first: torch.Tensor, second: torch.Tensor) -> None:
    """Raise RuntimeError unless both parts of a complex number are floats of one dtype (`complex_check_floating`,
    `complex_check_dtype`)."""
    accepted = (torch.float16, torch.float32, torch.float64)
    if first.dtype not in accepted or second.dtype not in accepted:
        raise RuntimeError(
            "Expected both inputs to be Half, Float or Double tensors but got "
            f"{_name(first.dtype)} and {_name(second.dtype)}"
        )
    if first.dtype != second.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {_name(first.dtype)} but got scalar type {_name(second.dtype)} "
            "for second argument"
        )


@override("aten.complex.default")
def complex_of_parts(real: torch.Tensor, imag: torch.Tensor) -> torch.Tensor:
    _check_parts(real, imag)
    return aten.complex.default(real, imag)


@override("aten.polar.default")
def complex_of_polar(abs: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    _check_parts(abs, angle)
    return aten.polar.default(abs, angle)


@override("aten.heaviside.default")
def heaviside(self: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if self.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return aten.heaviside.default(self, values)


def _subtraction(op: OpOverload) -> None:
    """Let `op` reject any bool operand; torch's meta function does so only for two of them (`sub_check` in
    BinaryOps.h)."""

    def infer(**arguments: Any) -> Any:
        bools = [
            x is True or x is False or getattr(x, "dtype", None) is torch.bool
            for x in (arguments["self"], arguments["other"])
        ]
        if any(bools):
            which = "two bool tensors is" if all(bools) else "a bool tensor is"
            instead = "`^` or `logical_xor()` operator" if all(bools) else "`~` or `logical_not()` operator"
            trying = "Use the" if all(bools) else "If you are trying to invert a mask, use the"
            raise RuntimeError(
                f"Subtraction, the `-` operator, with {which} not supported. {trying} {instead} instead."
            )
        return op(**arguments)

    OVERRIDES[str(op)] = infer


for _op in (aten.sub.Tensor, aten.sub.Scalar, aten.sub_.Tensor, aten.sub_.Scalar, aten.rsub.Tensor, aten.rsub.Scalar):
    _subtraction(_op)


def _made_as_on_the_cpu(op: OpOverload, *smallest: int) -> None:
    """Let `op`, which creates a tensor of numbers, check its dtype by the CPU's kernel for the `smallest` arguments."""

    def infer(**arguments: Any) -> torch.Tensor:
        result = op(**arguments)
        op(*smallest, dtype=result.dtype, device="cpu")
        return result

    OVERRIDES[str(op)] = infer


for _op, *_smallest in (
    (aten.arange.default, 1),
    (aten.arange.start, 0, 1),
    (aten.arange.start_step, 0, 1, 1),
    (aten.range.default, 0, 1),
    (aten.range.step, 0, 1, 1),
    (aten.tril_indices.default, 1, 1, 0),
    (aten.triu_indices.default, 1, 1, 0),
):
    _made_as_on_the_cpu(_op, *_smallest)


@override("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")
def kaiser_window(window_length: int, *_: Any, dtype: torch.dtype | None = None, **_options: Any) -> torch.Tensor:
    """torch implements it only by the CPU's kernel."""
    aten.kaiser_window.default(min(window_length, 2), dtype=dtype, device="cpu")
    return torch.empty(window_length, dtype=dtype, device="meta")


@override("aten.ldexp.Tensor")
def ldexp(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """For integers the dtype is the dtype of a quotient; torch's decomposition returns float32 whatever the default
    dtype is."""
    floating = any(t.is_floating_point() or t.is_complex() for t in (self, other))
    return aten.ldexp.Tensor(self, other) if floating else aten.div.Tensor(self, other)
