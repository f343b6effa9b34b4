"""Meta functions of batch norm: which statistics the CPU saves for the gradient, and in which dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.infer import OVERRIDES

aten = torch.ops.aten

_PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def _check_mixed(input: torch.dtype, parameters: set[torch.dtype]) -> None:
    """Parameters have the input's dtype; those of halves may be float32 (`check_mixed_data_type`)."""
    if not parameters <= {input} and not (input.itemsize == 2 and parameters == {torch.float32}):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


def _saved(op: OpOverload) -> None:
    def infer(**arguments: Any) -> tuple[torch.Tensor, ...]:
        """By the batch's statistics, mean and 1 / deviation in the dtype of the parameters, if there are any, else of
        the input (`param_scalar_type`); by running statistics nothing is saved: empty tensors."""
        output, mean, rstd, *rest = op(**arguments)
        x, parameters = arguments["input"], [arguments[p] for p in _PARAMETERS if arguments.get(p) is not None]
        _check_mixed(x.dtype, {p.dtype for p in parameters})
        dtype = (parameters or [x])[0].dtype
        update = "with_update" in str(op)
        shape = mean.shape if arguments.get("training", update) else (0,)
        return output, mean.new_empty(shape, dtype=dtype), rstd.new_empty(shape, dtype=dtype), *rest

    OVERRIDES[str(op)] = infer


for _op in (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_no_update.default,
):
    _saved(_op)
