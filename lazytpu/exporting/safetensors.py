"""The safetensors format: a header of JSON with dtypes, shapes and offsets, then the tensors' bytes.

It is implemented here since it is so simple. The library reads it (`safetensors.numpy`, `safetensors.flax`).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Raise NotImplementedError for a weight of a dtype that the format lacks."""
    if dtype not in _NAMES:
        raise NotImplementedError(
            f"weight '{name}' is {dtype}, which safetensors cannot hold; keep it as another dtype in the module, and "
            "convert it in forward()"
        )


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name, one after the other. Raises OSError."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        check_dtype(name, tensor.dtype)
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def read(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, in new memory. Raises ValueError for a damaged file, and OSError."""
    data = bytearray(path.read_bytes())
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length].decode())
        return {name: _tensor(entry, data, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} is not a file of safetensors: {error}") from error


def _tensor(entry: Mapping[str, Any], data: bytearray, start: int) -> torch.Tensor:
    dtype, shape = _DTYPES[str(entry["dtype"])], [int(size) for size in entry["shape"]]
    begin, end = (start + int(offset) for offset in entry["data_offsets"])
    count = math.prod(shape)
    if end - begin != count * dtype.itemsize or end > len(data):
        raise ValueError(f"{end - begin} bytes for {dtype}{shape}, in a file of {len(data)}")
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin).clone().view(dtype).reshape(shape)
