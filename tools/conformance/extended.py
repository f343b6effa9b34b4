"""Results of float64 ops with the 64 bits of mantissa of an x86 `long double`, for ops that numpy has as a ufunc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tools.conformance.samples import tensors, tree_map

if TYPE_CHECKING:
    from tools.conformance.trial import Trial


def references(trial: Trial) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the trial's results, each as a float64 tensor and its rounding error; None if numpy lacks the function."""
    function = getattr(trial.entry.info, "ref", None)
    if not isinstance(function, np.ufunc) or trial.entry.dtype is not torch.float64:
        return None
    first, args, kwargs = trial.host_inputs.take(fresh=True)
    if kwargs or len(tensors((first, args))) != function.nin:  # numpy has other names for numbers among the arguments
        return None
    with np.errstate(all="ignore"):
        results = function(*tree_map(_extended, [first, *args]))
    arrays = results if isinstance(results, tuple) else (results,)
    if any(array.dtype != np.longdouble for array in arrays):
        return None
    return [_halves(np.asarray(array)) for array in arrays]


def _extended(x: Any) -> Any:
    return x.numpy().astype(np.longdouble)


def _halves(x: np.ndarray[Any, np.dtype[np.longdouble]]) -> tuple[torch.Tensor, torch.Tensor]:
    with np.errstate(all="ignore"):
        high = x.astype(np.float64)
        low = np.where(np.isfinite(high), x - high, 0).astype(np.float64)
    return torch.from_numpy(np.atleast_1d(high)).view(x.shape), torch.from_numpy(np.atleast_1d(low)).view(x.shape)
