"""The signature of `@main`: a program's arguments, results, and donated arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from lazytpu.runtime.xla.mlir import func, ir

TensorSpec: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""(dtype, shape) of one argument or result."""

# Element types by their MLIR names; i1 is bool.
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

# Attributes: the result that overwrites an argument's memory; an argument whose memory any result may take.
ALIAS = "tf.aliasing_output"
DONOR = "jax.buffer_donor"
# The layout of an argument or result, the order of its dimensions in memory: "{0,1}", or "auto" for XLA's choice.
LAYOUT = "mhlo.layout_mode"


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments, results and donation of `@main`."""

    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    donated: tuple[int, ...]
    """Positions of the arguments that a run may overwrite."""
    laid: tuple[tuple[int, ...], tuple[int, ...]] = field(default=((), ()), compare=False)
    """Positions of the arguments and results that may have a non-default layout. The executable knows the layouts; a
    trace does not, so signatures that differ only in this are equal."""


def to_json(main: Signature) -> dict[str, Any]:
    """Return the signature as JSON, with the MLIR names of element types."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    return {
        "arguments": [[names[dtype], list(shape)] for dtype, shape in main.arguments],
        "results": [[names[dtype], list(shape)] for dtype, shape in main.results],
        "donated": list(main.donated),
        "laid": [list(positions) for positions in main.laid],
    }


def from_json(described: Mapping[str, Any]) -> Signature:
    """Read the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
    specs = {
        field_name: tuple((_DTYPES[name], tuple(int(n) for n in shape)) for name, shape in described[field_name])
        for field_name in ("arguments", "results")
    }
    arguments, results = (tuple(int(i) for i in positions) for positions in described["laid"])
    donated = tuple(int(i) for i in described["donated"])
    return Signature(specs["arguments"], specs["results"], donated, (arguments, results))


def type_text(spec: TensorSpec) -> str:
    """Return the tensor type in MLIR notation: "tensor<2x3xf32>"."""
    dtype, shape = spec
    element = next(name for name, candidate in _DTYPES.items() if candidate == dtype)
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def element_dtype(kind: ir.RankedTensorType) -> np.dtype[Any]:
    """Return the numpy dtype of a tensor type's elements. Raises ValueError if there is none."""
    name = str(kind.element_type)
    if name not in _DTYPES:
        raise ValueError(
            f"{kind} has elements of {name}, which has no numpy dtype; expected one of {', '.join(_DTYPES)}"
        )
    return _DTYPES[name]


def main_function(module: ir.Module) -> func.FuncOp:
    """Return `@main` of a module. Raises ValueError if it has none."""
    for op in module.body.operations:
        if isinstance(op, func.FuncOp) and op.name.value == "main":
            return op
    raise ValueError("the module has no function named main")


def signature(module: ir.Module) -> Signature:
    """Return the signature of `@main`."""
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
