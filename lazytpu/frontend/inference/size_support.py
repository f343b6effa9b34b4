"""Sizes and dimensions that the CPU's kernels reject and torch's meta functions accept: a dimension that does not
exist, and empty tensors where an op needs elements.

The CPU's own kernel is called, on the miss path. For empty tensors no values can change its answer, and a dimension
that does not exist is rejected for all sizes.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from torch._ops import OpOverload

from lazytpu.frontend.inference.cpu_errors import call_quietly, on_cpu
from lazytpu.frontend.inference.dtype_support import FEW, UNASKED, about_dtypes, count, cut, tensors_of
from lazytpu.frontend.inference.infer import call

_DIM = re.compile(r"(self_)?(dim|axis)(s|\d|_self|_other)?$")
_NO_DIM = "Dimension out of range"


def check_dims(op: OpOverload, bound: dict[str, Any], results: Any) -> None:
    """Raise the CPU's error when it rejects these sizes and dimensions; `results` as in `check_dtypes`."""
    operands = list(tensors_of(bound.values()))
    if not operands or UNASKED.match(str(op)):
        return
    if all(t.numel() == 0 for t in operands) and count(bound, results) <= FEW:
        error = _said(op, {name: on_cpu(value) for name, value in bound.items()})
        if error is not None and not isinstance(error, NotImplementedError) and not about_dtypes(error):
            raise error
    elif _is_astray(op, bound, operands[0].dim()):
        error = _said(op, {name: cut(value, 2) for name, value in bound.items()})
        if isinstance(error, IndexError) and _NO_DIM in str(error):
            raise error


def _is_astray(op: OpOverload, bound: dict[str, Any], rank: int) -> bool:
    """Return whether an argument names a dimension that a tensor of this rank lacks; some ops accept it all the
    same."""
    last = max(rank, 1)
    for name in _dims(op):
        value = bound.get(name)
        for dim in value if isinstance(value, list | tuple) else [value]:
            if type(dim) is int and not -last <= dim < last:
                return True
    return False


@functools.cache
def _dims(op: OpOverload) -> tuple[str, ...]:
    return tuple(a.name for a in op._schema.arguments if _DIM.match(a.name))


def _said(op: OpOverload, arguments: dict[str, Any]) -> Exception | None:
    """Return the CPU's error, or None."""
    try:
        call_quietly(call, op, arguments)
    except Exception as error:  # noqa: BLE001 (re-raised by the caller)
        return error.with_traceback(None)
    return None
