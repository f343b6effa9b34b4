"""Reading the signature of `@main`: what a program takes, gives, and may overwrite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from lazytpu.runtime.xla.mlir import func, ir

TensorSpec: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""(dtype, shape) of one argument or result."""

# MLIR prints an element type as its name; i1 is bool.
_DTYPES: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    **{f"i{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
}

# A result that is written into an argument's memory, and an argument whose memory may be taken for any result.
ALIAS = "tf.aliasing_output"
DONOR = "jax.buffer_donor"
# The order of dimensions in memory of an argument or result: as XLA writes it, "{0,1}", or "auto" where XLA chooses.
LAYOUT = "mhlo.layout_mode"


@dataclass(frozen=True, slots=True)
class Signature:
    """What `@main` takes and gives."""

    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    donated: tuple[int, ...]
    """Positions of the arguments that a run may overwrite."""
    laid: tuple[tuple[int, ...], tuple[int, ...]] = field(default=((), ()), compare=False)
    """Positions of the arguments and of the results that may lie in memory otherwise than by default. How they do, the
    executable says; a trace knows nothing of it, so signatures that differ in this alone are equal."""


def to_json(main: Signature) -> dict[str, Any]:
    """The signature as JSON, element types by their MLIR names."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    return {
        "arguments": [[names[dtype], list(shape)] for dtype, shape in main.arguments],
        "results": [[names[dtype], list(shape)] for dtype, shape in main.results],
        "donated": list(main.donated),
        "laid": [list(each) for each in main.laid],
    }


def from_json(described: Mapping[str, Any]) -> Signature:
    """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for what is no signature."""
    specs = {
        part: tuple((_DTYPES[name], tuple(int(n) for n in shape)) for name, shape in described[part])
        for part in ("arguments", "results")
    }
    arguments, results = (tuple(int(i) for i in each) for each in described["laid"])
    donated = tuple(int(i) for i in described["donated"])
    return Signature(specs["arguments"], specs["results"], donated, (arguments, results))


def type_text(spec: TensorSpec) -> str:
    """The tensor type as MLIR spells it: "tensor<2x3xf32>"."""
    dtype, shape = spec
    element = next(name for name, each in _DTYPES.items() if each == dtype)
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def element_dtype(kind: ir.RankedTensorType) -> np.dtype[Any]:
    """The numpy dtype of a tensor type's elements."""
    name = str(kind.element_type)
    if name not in _DTYPES:
        raise ValueError(
            f"{kind} has elements of {name}, which has no numpy dtype; expected one of {', '.join(_DTYPES)}"
        )
    return _DTYPES[name]


def main_function(module: ir.Module) -> func.FuncOp:
    """`@main` of a module."""
    for op in module.body.operations:
        if isinstance(op, func.FuncOp) and op.name.value == "main":
            return op
    raise ValueError("the module has no function named main")


def signature(module: ir.Module) -> Signature:
    """The signature of `@main`."""
    main = main_function(module)
    donated: list[int] = []
    if "arg_attrs" in main.attributes:
        for index, attributes in enumerate(main.arg_attrs):
            names = ir.DictAttr(attributes)
            if ALIAS in names or DONOR in names:
                donated.append(index)
    laid = _laid(main, "arg_attrs"), _laid(main, "res_attrs")
    return Signature(
        tuple(_spec(t) for t in main.type.inputs), tuple(_spec(t) for t in main.type.results), tuple(donated), laid
    )


def _laid(main: func.FuncOp, which: str) -> tuple[int, ...]:
    if which not in main.attributes:
        return ()
    return tuple(i for i, named in enumerate(ir.ArrayAttr(main.attributes[which])) if LAYOUT in ir.DictAttr(named))


def _spec(kind: ir.Type) -> TensorSpec:
    tensor = ir.RankedTensorType(kind)
    return element_dtype(tensor), tuple(tensor.shape)
