"""Custom kernels: functions written in JAX or Pallas as ops on tensors. docs/custom-kernels.md shows how."""

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
        function: a pure function of JAX arrays, and of settings. Tensors of a call are its arrays; other arguments are
            part of the kernel and have to be hashable.
        name: what records, dumps and errors call it; the function's name by default.
        out_shape: what it returns, as `jax.ShapeDtypeStruct`s or a function of the arguments that gives them. A call
            that returns anything else raises ValueError. By default whatever it returns.
        input_output_aliases: {operand: result}, counted among the tensors and the arrays returned: the result is
            written into the operand, whose memory it takes.
        cast_inputs: the dtype that floating-point operands are cast to under autocast; by default they are not.
        sharding_rule: how operands and results may be divided among devices, as "rows k, k columns -> rows columns":
            a name for each dimension, the same for those that are divided alike. It is a property of the op, for
            passes; programs of several devices do not exist yet.
        padding: which sizes may have padding behind them, as "rows columns=0 -> rows": a name for each dimension of
            operands and results that may, `_` for the others, and the number that the kernel needs there, if any. Then
            steps with the kernel share programs among sizes (docs/padding.md); without it, each size is a program.

    Raises TypeError and ValueError for a rule of sharding or padding that is none, and TypeError, ValueError and
    RuntimeError at a call, with what to do: see docs/custom-kernels.md.
    """
    from lazytpu.frontend.activation import activate
    from lazytpu.kernels.kernel import CustomKernel

    activate()
    if function is not None:
        return CustomKernel(function, **options)
    return lambda function: CustomKernel(function, **options)
