"""Transfers: every dtype to the device and back, bit for bit, for all kinds of shapes and strides."""

from __future__ import annotations

import contextlib
import warnings

import torch

from lazytpu.doctor.check import check

DTYPES = [
    *"float16 bfloat16 float32 float64 complex64 complex128 bool".split(),
    *"int8 int16 int32 int64 uint8 uint16 uint32 uint64".split(),
    *"float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split(),
]
SIZE = (6, 8)


@check(of=DTYPES)
def both_ways(name: str) -> str:
    """Values keep every bit on the way to the device, through a program that moves them, and back: 0-d, empty and
    strided tensors, with NaN and infinities."""
    dtype = getattr(torch, name)
    base = _values(dtype)
    forms = {
        "contiguous": base,
        "0-d": base[1, 2],
        "empty": base[:0],
        "transposed": base.t(),
        "every other column": base[:, 1::2],
        "expanded": base[:, :1].expand(SIZE),
        "three-dimensional": base.view(2, 3, 8).permute(2, 0, 1),
    }
    for form, tensor in forms.items():
        moved = tensor.to("tpu")
        _same(moved.cpu(), tensor, form)
        if tensor.dim():
            _same(_rolled(moved).cpu(), _rolled(tensor), f"{form}, moved on the device")
    on_device = base.to("tpu")
    _same(on_device.t()[1:, ::2].cpu(), base.t()[1:, ::2], "a view made on the device")
    return f"{len(forms)} forms, there and back"


@check()
def other_dtypes() -> str:
    """Dtypes that the device lacks are refused with a reason."""
    refused: list[str] = []
    for dtype in _others():
        try:
            torch.empty(2, dtype=dtype).to("tpu")
        except (NotImplementedError, TypeError):
            refused.append(str(dtype).removeprefix("torch."))
        else:
            raise ValueError(f"{dtype} was accepted")
    return f"refused: {', '.join(refused)}"


def _others() -> list[torch.dtype]:
    """torch's dtypes that are not in `DTYPES` and that the CPU supports."""
    supported = {getattr(torch, name) for name in DTYPES}
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - supported
    unsupported: list[torch.dtype] = []
    for dtype in sorted(dtypes, key=str):
        with (
            warnings.catch_warnings(),
            contextlib.suppress(RuntimeError),
        ):  # experimental dtypes warn, quantized ones raise
            warnings.simplefilter("ignore")
            torch.empty(2, dtype=dtype)
            unsupported.append(dtype)
    return unsupported


def _values(dtype: torch.dtype) -> torch.Tensor:
    """A matrix with the extremes of a dtype and numbers in between."""
    count = SIZE[0] * SIZE[1]
    numbers = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 50
    if dtype == torch.bool:
        return (numbers > 0).view(SIZE)
    if dtype.is_complex:
        real_dtype = torch.float32 if dtype == torch.complex64 else torch.float64
        return torch.complex(_values(real_dtype), _values(real_dtype).flip(0))
    if dtype.is_floating_point and dtype.itemsize == 1:
        return (torch.arange(count) * 5).to(torch.uint8).view(dtype).view(SIZE)  # a fifth of its bit patterns
    if dtype.is_floating_point:
        facts = torch.finfo(dtype)
        values = numbers.to(dtype)
        special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), facts.max, facts.min, facts.tiny]
        values[: len(special)] = torch.tensor(special, dtype=dtype)
        return values.view(SIZE)
    limits = torch.iinfo(dtype)
    values = numbers.abs().to(torch.uint8 if limits.bits == 8 else torch.int16).to(dtype)
    values[:2] = torch.tensor([limits.min, limits.max], dtype=dtype)
    return values.view(SIZE)


def _rolled(tensor: torch.Tensor) -> torch.Tensor:
    """The first row moved to the end, by a program that works for any dtype."""
    return torch.cat([tensor[1:], tensor[:1]])


def _same(got: torch.Tensor, expected: torch.Tensor, form: str) -> None:
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        raise ValueError(f"{form}: {got.dtype}{list(got.shape)} came back, not {expected.dtype}{list(expected.shape)}")
    bits_got, bits_expected = (x.contiguous().view(-1).view(torch.uint8) for x in (got, expected))
    if not torch.equal(bits_got, bits_expected):
        size = expected.element_size()
        index = int((bits_got != bits_expected).nonzero()[0]) // size
        pair = [x.contiguous().view(-1)[index].item() for x in (got, expected)]
        raise ValueError(f"{form}: element {index} came back as {pair[0]!r}, not {pair[1]!r}, or with other bits")
