"""The arguments of a kernel: tensors are its operands, and everything else is part of the kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from lazytpu.aten import dtypes
from lazytpu.frontend.recording.keys import exact
from lazytpu.ir.types import numpy_dtype

_SYMBOLIC: dict[type, Callable[[Any], Any]] = {torch.SymBool: bool, torch.SymInt: int, torch.SymFloat: float}
_ARRAYS = ("Array", "ArrayLike", "ndarray", "Tensor")  # jax.Array, jax.typing.ArrayLike, jnp.ndarray


@dataclass(frozen=True)
class Static:
    """A leaf that is part of the kernel. Its `key` distinguishes values that are equal only in Python: True, 1
    and 1.0."""

    value: Any
    key: Any


def static(value: Any, name: str, where: Callable[[], str]) -> Static:
    """Return a non-tensor leaf as part of the kernel `name`. Raises TypeError with its place, from `where`, unless it
    is hashable."""
    if isinstance(value, tuple(_SYMBOLIC)):  # of a graph of Dynamo, which is then specialized to this number
        value = _SYMBOLIC[type(value)](value)
    if isinstance(value, torch.dtype):
        value = numpy_dtype(dtypes.name(value))
    key = exact(value) if isinstance(value, bool | int | float | complex) else (type(value), value)
    try:
        hash(key)
    except TypeError:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{name}: {where()} is a {kind}, which is neither a tensor nor hashable. An argument that is no tensor is "
            "part of the kernel, so it has to be hashable: pass data as a tensor (torch.as_tensor(x).to('tpu')), and "
            "settings as numbers, strings, tuples or frozen dataclasses"
        ) from None
    return Static(value, key)


class Parameters:
    """The parameters of a kernel's function, by its signature."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        try:
            self.signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # a callable implemented in C
            self.signature = None
        parameters = {} if self.signature is None else self.signature.parameters
        self.arrays = frozenset(p for p, kind in parameters.items() if _is_array(kind.annotation))

    def check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise TypeError when the function does not take these arguments."""
        if self.signature is None:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self.signature}: {error}") from None

    def numbers(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """Convert numbers for parameters annotated as arrays to tensors. Such a value is then no part of the kernel, so
        another number compiles nothing. Return (args, kwargs, the new tensors)."""
        converted: list[torch.Tensor] = []
        if not self.arrays or self.signature is None:
            return args, kwargs, converted
        self.check(args, kwargs)
        bound = self.signature.bind(*args, **kwargs)
        for parameter in self.arrays & bound.arguments.keys():
            value = bound.arguments[parameter]
            if type(value) in (bool, int, float, complex, *_SYMBOLIC):
                bound.arguments[parameter] = tensor = _number(value)
                converted.append(tensor)
        return bound.args, bound.kwargs, converted

    def place(self, args: Sequence[Any], kwargs: dict[str, Any], leaf: Any) -> str:
        """Return the name of a leaf of the arguments for an error message."""
        if self.signature is None:
            return "an argument"
        for parameter, value in self.signature.bind(*args, **kwargs).arguments.items():
            for path, item in jax.tree_util.tree_flatten_with_path(value)[0]:
                if item is leaf:
                    return f"argument {parameter}{jax.tree_util.keystr(path)}"
        return "an argument"


_DTYPES = {bool: torch.bool, int: torch.int32, float: torch.float32, complex: torch.complex64}
_OF_SYMBOLS = {torch.SymInt: torch.int32, torch.SymFloat: torch.float32}


def _number(value: Any) -> torch.Tensor:
    """Convert a number to a 0-d CPU tensor, which recording takes as a run-time number. An integer has 64 bits if it
    needs them."""
    if type(value) in _OF_SYMBOLS:
        return torch.scalar_tensor(value, dtype=_OF_SYMBOLS[type(value)])
    if isinstance(value, torch.SymBool):
        value = bool(value)
    is_long = type(value) is int and not -(1 << 31) <= value < 1 << 31
    return torch.tensor(value, dtype=torch.int64 if is_long else _DTYPES[type(value)])


def _is_array(annotation: Any) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(text).rpartition(".")[2] in _ARRAYS


def check_declared(out_shape: Any, args: Any, kwargs: Any, results: Any) -> None:
    """Raise ValueError when the results of a function differ from the declaration by `out_shape`."""
    declared = out_shape(*args, **kwargs) if callable(out_shape) else out_shape
    expected, actual = (jax.tree.structure(tree) for tree in (declared, results))
    if expected != actual:
        raise ValueError(f"it declares results of the form {expected} by out_shape, and returned {actual}")
    pairs = zip(jax.tree_util.tree_flatten_with_path(declared)[0], jax.tree.leaves(results), strict=True)
    for (path, want), got in pairs:
        got = jax.eval_shape(lambda x: x, got)
        if (tuple(want.shape), want.dtype) != (tuple(got.shape), got.dtype):
            raise ValueError(
                f"result{jax.tree_util.keystr(path)} is declared as {want.dtype}{list(want.shape)} by out_shape, and "
                f"the function returned {got.dtype}{list(got.shape)}. Correct one of them"
            )
