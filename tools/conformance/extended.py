"""Results of float64 ops with the 64 bits of mantissa of an x86 `long double`, for ops that numpy has as a ufunc, and
for means and variances, of which torch's kernels lose digits in float64 but not in float32. For `polygamma(1, x)`,
whose float64 kernel ends its series too early (2e6 ulp), scipy's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from scipy import special

from tools.conformance.samples import tensors, tree_map

INEXACT = tuple(f"special.bessel_{kind}" for kind in ("j0", "j1", "y0", "y1"))
"""Functions whose kernels of float64 are right to 5 digits in places: scipy's are the reference of every dtype."""
Extended: TypeAlias = "np.ndarray[Any, np.dtype[np.longdouble]]"

if TYPE_CHECKING:
    from tools.conformance.trial import Trial


def references(trial: Trial) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the trial's results, each as a float64 tensor and its rounding error; None if numpy lacks the function."""
    function = getattr(trial.entry.info, "ref", None)
    if trial.entry.info.name in INEXACT and isinstance(function, np.ufunc):
        return [_halves(np.asarray(function(trial.host_inputs.take(fresh=True)[0].double().numpy()), np.longdouble))]
    if trial.entry.dtype is not torch.float64:
        return None
    first, args, kwargs = trial.host_inputs.take(fresh=True)
    if trial.entry.info.name.removeprefix("special.").startswith("polygamma") and args == (1,):
        return [_halves(np.asarray(special.polygamma(1, first.numpy()), np.longdouble))]
    if trial.entry.info.name in MOMENTS:
        return [_halves(x) for x in moments(trial.entry.info.name, _extended(first), *args, **kwargs)]
    if not isinstance(function, np.ufunc):
        return None
    if kwargs or len(tensors((first, args))) != function.nin:  # numpy has other names for numbers among the arguments
        return None
    with np.errstate(all="ignore"):
        results = function(*tree_map(_extended, [first, *args]))
    arrays = results if isinstance(results, tuple) else (results,)
    if any(array.dtype != np.longdouble for array in arrays):
        return None
    return [_halves(np.asarray(array)) for array in arrays]


MOMENTS = ("mean", "std", "var", "std_mean", "var_mean")


def moments(name: str, x: Extended, dim: Any = None, *args: bool, **kwargs: Any) -> list[Extended]:
    """The results of `torch.mean`, `torch.var` and their relatives, with their arguments: (dim, keepdim) for a mean,
    else (unbiased) or (dim, unbiased, keepdim)."""
    if isinstance(dim, bool):
        dim, args = None, (dim, *args)
    flags = dict(zip(("keepdim",) if name == "mean" else ("unbiased", "keepdim"), args, strict=False)) | kwargs
    dim, correction = kwargs.get("dim", dim), flags.get("correction", int(flags.get("unbiased", True)))
    correction = 1 if correction is None else correction
    axes = tuple(dim) if isinstance(dim, list | tuple) else dim if dim is None else (dim,)
    axes = axes or None  # an empty list is all dimensions
    mean = x.mean(axis=axes, keepdims=True)
    count = x.size // max(mean.size, 1)
    variance = (np.abs(x - mean) ** 2).sum(axis=axes, keepdims=True) / max(count - correction, 0)
    spread = np.sqrt(variance) if name.startswith("std") else variance
    results = [mean] if name == "mean" else [spread, mean] if name.endswith("mean") else [spread]
    return results if flags.get("keepdim") else [np.squeeze(r, axis=axes or tuple(range(x.ndim))) for r in results]


def _extended(x: Any) -> Any:
    return x.numpy().astype(np.longdouble)


def _halves(x: Extended) -> tuple[torch.Tensor, torch.Tensor]:
    with np.errstate(all="ignore"):
        high = x.astype(np.float64)
        low = np.where(np.isfinite(high), x - high, 0).astype(np.float64)
    return torch.from_numpy(np.atleast_1d(high)).view(x.shape), torch.from_numpy(np.atleast_1d(low)).view(x.shape)
