"""Custom kernels: functions in JAX or Pallas as ops on tensors. docs/custom-kernels.md has examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from lazytpu.kernels.kernel import CustomKernel

__all__ = ["custom_jax_kernel"]


@overload
def custom_jax_kernel(function: Callable[..., Any], /) -> CustomKernel: ...
@overload
def custom_jax_kernel(
    *,
    name: str | None = None,
    out_shape: Any = None,
    input_output_aliases: Mapping[int, int] | None = None,
    cast_inputs: torch.dtype | None = None,
    sharding_rule: str | None = None,
    padding: str | None = None,
) -> Callable[[Callable[..., Any]], CustomKernel]: ...
def custom_jax_kernel(function: Any = None, /, **options: Any) -> Any:
    """Decorate a JAX or Pallas function to make it an op on "tpu" tensors.

    Args:
        function: a pure function of JAX arrays, and of settings. It receives the tensors of a call as arrays; other
            arguments are part of the kernel and have to be hashable.
        name: the kernel's name in records, dumps and errors; the function's name by default.
        out_shape: the results, as `jax.ShapeDtypeStruct`s, or a function of the arguments that returns them. A call
            with other results raises ValueError. By default, any results are allowed.
        input_output_aliases: {operand: result}, by position among the tensors and the returned arrays: the result is
            written into the operand, whose memory it takes.
        cast_inputs: the dtype to which autocast casts floating-point operands; by default it casts none.
        sharding_rule: how operands and results may be divided among devices, as "rows k, k columns -> rows columns":
            a name for each dimension; dimensions of the same name are divided alike. It is a property of the op, for
            passes; programs of several devices do not exist yet.
        padding: which dimensions may have padding, as "rows columns=0 -> rows": a name for each such dimension of
            operands and results, with the number that the kernel needs in the padding, if any; `_` for the others. Then
            steps with the kernel share programs among sizes (docs/padding.md); without it, each size has its program.

    Raises TypeError and ValueError for an invalid sharding or padding rule. A call raises TypeError, ValueError or
    RuntimeError, with the remedy: see docs/custom-kernels.md.
    """
    from lazytpu.frontend.activation import activate
    from lazytpu.kernels.kernel import CustomKernel

    activate()
    if function is not None:
        return CustomKernel(function, **options)
    return lambda function: CustomKernel(function, **options)
