"""Which dtypes torch's CPU implements an op for: what it refuses, tpu refuses, at the call and with the same error.

torch's meta functions do not know: they accept bitwise_and of floats. The CPU's own kernel is asked, once per op and
dtypes, on tensors of one element.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

# Not pointwise, but safe to ask with one element too.
_ASKED_TOO = frozenset({torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default})

# A dtype without a kernel, and a result that an in-place op cannot keep; other errors are not of the dtypes.
_REFUSALS = ("not implemented for", "can't be cast to the desired output type")

_accepted: set[tuple[Any, ...]] = set()


def check_dtypes(op: OpOverload, bound: dict[str, Any]) -> None:
    """Raise the CPU's error when it has no kernel of `op` for these dtypes."""
    if torch.Tag.pointwise not in op.tags and op not in _ASKED_TOO:
        return
    key = (op, *((name, _key(value)) for name, value in bound.items()))
    if key in _accepted:
        return
    schema = op._schema.arguments
    small = {name: _small(value) for name, value in bound.items()}
    try:
        op(
            *[small[a.name] for a in schema if not a.kwarg_only and a.name in small],
            **{a.name: small[a.name] for a in schema if a.kwarg_only and a.name in small},
        )
    except (NotImplementedError, RuntimeError) as error:
        if any(refusal in str(error) for refusal in _REFUSALS):
            raise
    _accepted.add(key)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim() == 0
    return type(value)


def _small(value: Any) -> Any:
    """One element of a tensor's dtype, on the CPU; ones, so that integers divide."""
    if isinstance(value, torch.Tensor):
        return torch.ones([1] * value.dim(), dtype=value.dtype)
    if isinstance(value, list | tuple):
        return [_small(v) for v in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value
