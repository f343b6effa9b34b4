"""Meta functions of normalizations: the statistics that the CPU saves for the gradient, and their dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.formats import contiguous, of_format
from lazytpu.frontend.inference.infer import OVERRIDES, override

aten = torch.ops.aten

_PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def _saved_dtype(x: torch.Tensor, arguments: dict[str, Any]) -> torch.dtype:
    """Return the dtype of the parameters if there are any, else of the input (`param_scalar_type`).

    Parameters have the input's dtype, or float32 for an input in half precision (`check_mixed_data_type`).
    """
    parameters = [arguments[name].dtype for name in _PARAMETERS if arguments.get(name) is not None]
    if not set(parameters) <= {x.dtype} and not (x.dtype.itemsize == 2 and set(parameters) == {torch.float32}):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")
    return (parameters or [x.dtype])[0]


def _of_batches(op: OpOverload) -> None:
    def infer(**arguments: Any) -> tuple[torch.Tensor, ...]:
        """Return the mean and 1 / deviation of the batch; empty tensors with running statistics, which save nothing."""
        x = arguments["input"]
        output, mean, rstd, *reserve = op(**arguments)
        dtype = _saved_dtype(x, arguments)
        shape = mean.shape if arguments.get("training", "with_update" in str(op)) else (0,)
        output = contiguous(output) if x.is_contiguous() else of_format(output, x)
        if "functional" in str(op):  # the new running statistics, which torch's decomposition widens
            reserve[-2:] = [torch.empty_like(arguments[name]) for name in ("running_mean", "running_var")]
        return output, mean.new_empty(shape, dtype=dtype), rstd.new_empty(shape, dtype=dtype), *reserve

    OVERRIDES[str(op)] = infer


def _of_elements(op: OpOverload) -> None:
    def infer(**arguments: Any) -> tuple[torch.Tensor, ...]:
        """Return the means and 1 / deviations of layers or groups."""
        output, mean, rstd = op(**arguments)
        dtype = _saved_dtype(output, arguments)
        return output, mean.new_empty(mean.shape, dtype=dtype), rstd.new_empty(rstd.shape, dtype=dtype)

    OVERRIDES[str(op)] = infer


@override("aten.native_group_norm_backward.default")
def group_norm_backward(**arguments: Any) -> tuple[torch.Tensor | None, ...]:
    """The input's gradient has its dtype and format; torch's meta function promotes it to the dtype of the weights."""
    x = arguments["input"]
    of_input, *of_parameters = aten.native_group_norm_backward.default(**arguments)
    return None if of_input is None else of_format(of_input.to(x.dtype), x), *of_parameters


for _op in (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
    aten._batch_norm_no_update.default,
):
    _of_batches(_op)
for _op in (aten.native_layer_norm.default, aten.native_group_norm.default):
    _of_elements(_op)
