"""Names of dtypes: torch's dtype objects to the dialect's strings and back."""

from __future__ import annotations

import torch

NAMES: dict[torch.dtype, str] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.bool: "i1",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
    torch.float8_e8m0fnu: "f8e8m0fnu",
}
# Repeated from ir/types.py, since a process that finds its programs in the cache does not load xDSL.
FLOATS8 = frozenset(dtype for dtype in NAMES if dtype.is_floating_point and dtype.itemsize == 1)
NAMES_OF_FLOATS8 = frozenset(NAMES[dtype] for dtype in FLOATS8)
_TORCH = {name: dtype for dtype, name in NAMES.items()}


def name(dtype: torch.dtype) -> str:
    """The dialect's name of a torch dtype.

    Raises NotImplementedError for a dtype without an element type in the dialect.
    """
    try:
        return NAMES[dtype]
    except KeyError:
        known = ", ".join(str(d) for d in NAMES)
        raise NotImplementedError(f"dtype {dtype} is not supported on 'tpu'; supported are {known}") from None


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a dialect name."""
    return _TORCH[name]
