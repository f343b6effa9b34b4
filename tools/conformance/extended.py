"""Results of float64 ops with the 64 bits of mantissa of an x86 `long double`, for ops that numpy has as a ufunc, and
for means, variances and running sums, of which torch's kernels lose digits in float64 but not in float32. For
`polygamma(1, x)`, whose float64 kernel ends its series too early (2e6 ulp), scipy's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from scipy import special

from tools.conformance.samples import tensors, tree_map

INEXACT: dict[str, Callable[[Any], Any]] = {
    **{f"special.bessel_{kind}": getattr(special, kind) for kind in ("j0", "j1", "y0", "y1")},
    "special.airy_ai": lambda x: special.airy(x)[0],
}
"""Functions whose kernels of float64 are right to 5 digits in places: scipy's are the reference of every dtype."""
Extended: TypeAlias = "np.ndarray[Any, np.dtype[np.longdouble]]"

if TYPE_CHECKING:
    from tools.conformance.trial import Trial


def references(trial: Trial) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the trial's results, each as a float64 tensor and its rounding error; None if numpy lacks the function."""
    function, name = getattr(trial.entry.info, "ref", None), trial.entry.info.name
    if name in INEXACT:
        x = trial.host_inputs.take(fresh=True)[0].double().numpy()
        return [_halves(np.asarray(INEXACT[name](x), np.longdouble))]
    if trial.entry.dtype is not torch.float64:
        return None
    first, args, kwargs = trial.host_inputs.take(fresh=True)
    if name.removeprefix("special.").startswith("polygamma") and args == (1,):
        return [_halves(np.asarray(special.polygamma(1, first.numpy()), np.longdouble))]
    if name in MOMENTS:
        return [_halves(x) for x in moments(name, _extended(first), *args, **kwargs)]
    if name in SUMS:
        with np.errstate(all="ignore"):
            return [_halves(SUMS[name](*tree_map(_numbers, [first, *args]), **tree_map(_numbers, kwargs)))]
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


def cumulative_trapezoid(y: Extended, x: Extended | None = None, *, dx: float = 1.0, dim: int = -1) -> Extended:
    """`torch.cumulative_trapezoid`."""
    return np.cumsum(_areas(y, x, dx, dim), axis=dim)


def trapezoid(y: Extended, x: Extended | None = None, *, dx: float = 1.0, dim: int = -1) -> Extended:
    """`torch.trapezoid`."""
    return np.sum(_areas(y, x, dx, dim), axis=dim)


def _areas(y: Extended, x: Extended | None, dx: float, dim: int) -> Extended:
    y = np.moveaxis(y, dim, -1)
    steps: Any = dx if x is None else np.diff(x if x.ndim == 1 else np.moveaxis(x, dim, -1))
    return np.moveaxis((y[..., 1:] + y[..., :-1]) * steps / 2, -1, dim)


def batch_norm(
    x: Extended,
    mean: Extended | None,
    variance: Extended | None,
    weight: Extended | None = None,
    bias: Extended | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Extended:
    """`torch.nn.functional.batch_norm`; its running statistics, which it writes, are no results."""
    del momentum
    axes = (0, *range(2, x.ndim))
    estimated = training or mean is None or variance is None
    centred = x - (x.mean(axis=axes, keepdims=True) if estimated else _channels(mean, x))
    spread = (centred**2).mean(axis=axes, keepdims=True) if estimated else _channels(variance, x)
    result = centred / np.sqrt(spread + np.longdouble(eps))
    result = result if weight is None else result * _channels(weight, x)
    return result if bias is None else result + _channels(bias, x)


def _channels(x: Any, like: Extended) -> Extended:
    return x.reshape(-1, *[1] * (like.ndim - 2))


SUMS: dict[str, Callable[..., Extended]] = {
    "cumsum": lambda x, dim: np.cumsum(x, axis=dim),
    "cumulative_trapezoid": cumulative_trapezoid,
    "trapezoid": trapezoid,
    "trapz": trapezoid,
    "nn.functional.batch_norm": batch_norm,
}


def _numbers(x: Any) -> Any:
    return _extended(x) if isinstance(x, torch.Tensor) else x


def _extended(x: Any) -> Any:
    return x.numpy().astype(np.longdouble)


def _halves(x: Extended) -> tuple[torch.Tensor, torch.Tensor]:
    with np.errstate(all="ignore"):
        high = x.astype(np.float64)
        low = np.where(np.isfinite(high), x - high, 0).astype(np.float64)
    return torch.from_numpy(np.atleast_1d(high)).view(x.shape), torch.from_numpy(np.atleast_1d(low)).view(x.shape)
