"""8-bit floats: stored, moved and cast as on the CPU, bit for bit; the ops that the CPU supports, and no others."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazytpu

DTYPES = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
EIGHT = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch.float8_"))
FLOATS = (torch.float32, torch.float16, torch.float64, torch.bfloat16, torch.complex64, torch.complex128)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64)


def every(dtype: torch.dtype) -> torch.Tensor:
    """Return all 256 bit patterns, on the CPU."""
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the contents of a tensor as bytes on the CPU. NaNs of bfloat16 are unified, since XLA keeps a sign that
    torch drops."""
    if tensor.dtype is torch.bfloat16:
        tensor = torch.where(tensor.isnan(), torch.nan, tensor)
    return tensor.cpu().contiguous().view(torch.uint8)


@EIGHT
def test_down(dtype: torch.dtype) -> None:
    numbers = every(dtype)
    on_device = numbers.to("tpu")
    assert on_device.dtype is dtype and on_device.element_size() == 1 and torch.equal(bits(on_device), bits(numbers))
    for wider in (*FLOATS, torch.bool, *DTYPES):
        assert torch.equal(bits(on_device.to(wider)), bits(numbers.to(wider))), wider
    defined = numbers[numbers.float().abs() < 100]  # values that are undefined in C++ are omitted
    for wider in INTEGERS:
        assert torch.equal(bits(defined.to("tpu").to(wider)), bits(defined.to(wider))), wider


def dense() -> torch.Tensor:
    """Return float32 values of every sign, exponent and upper half of a mantissa, and their neighbours and
    midpoints."""
    high = torch.arange(1 << 16, dtype=torch.int64) << 16
    halves = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    patterns = torch.cat([high + low for low in halves])
    return patterns.sub((patterns >= 1 << 31).long() << 32).int().view(torch.float32)


@EIGHT
def test_up(dtype: torch.dtype) -> None:
    numbers = dense()
    normal = numbers[(numbers.abs() >= torch.finfo(torch.float32).tiny) | (numbers == 0)]  # XLA:CPU flushes the others
    short = torch.arange(-(1 << 15), 1 << 15).short()
    sources = [numbers, normal.double(), normal.double() * (1 + 2**-30), short, torch.tensor([True, False])]
    sources += [short.view(torch.float16), short.view(torch.bfloat16), short.int() * 65_521, short.long() << 40]
    for source in sources:
        assert torch.equal(bits(source.to("tpu").to(dtype)), bits(source.to(dtype))), source.dtype


MOVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "clone": lambda x: x.clone(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "copy": lambda x: torch.zeros(256, device=x.device).copy_(x),
    "copy down": lambda x: torch.zeros_like(x).copy_(torch.arange(256.0, device=x.device)),
    "cat": lambda x: torch.cat([x, x[:9]]),
    "stack": lambda x: torch.stack([x, x]),
    "roll": lambda x: x.roll(5),
    "index": lambda x: x[torch.tensor([3, 1, 254], device=x.device)],
    "mask": lambda x: x[torch.arange(256, device=x.device) % 3 == 0],
    "where": lambda x: torch.where(torch.arange(256, device=x.device) < 128, x, x.roll(1)),
    "transpose": lambda x: x.view(16, 16).t().contiguous(),
    "permute": lambda x: x.view(4, 8, 8).permute(2, 0, 1).clone(),
    "crop": lambda x: x.view(16, 16)[::2, 1::3].clone(),
    "expand": lambda x: x[3:4].expand(5).contiguous(),
    "unfold": lambda x: x.unfold(0, 2, 1).clone(),
    "write": lambda x: x.clone().view(16, 16)[2:5].copy_(x.view(16, 16)[7:10]),
    "write a number": lambda x: _changed(x, lambda y: y.__setitem__(slice(3, 9), 1.75)),
    "write float32": lambda x: _changed(x, lambda y: y.__setitem__(slice(0, 7), torch.arange(7.0, device=x.device))),
    "put": lambda x: _changed(x, lambda y: y.__setitem__(torch.tensor([0, 9], device=x.device), x[100:102].clone())),
    "fill": lambda x: torch.full((3,), 2.3, dtype=x.dtype, device=x.device),
    "fill much": lambda x: torch.full((3,), 1e30, dtype=x.dtype, device=x.device),
    "zeros": lambda x: torch.zeros(3, dtype=x.dtype, device=x.device),
    "ones": lambda x: x.new_ones(3),
    "as bits": lambda x: x.view(torch.uint8),
    "as int16": lambda x: x.view(torch.int16),
    "as float32": lambda x: x.view(torch.float32).view(torch.uint8),
    "of bits": lambda x: torch.arange(256, dtype=torch.uint8, device=x.device).view(x.dtype),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1, 2], device=x.device), x.view(16, 16)),
    "equal": lambda x: x == x.roll(1),
    "nan": lambda x: x.isnan(),
    "any": lambda x: x.any(),
    "item": lambda x: x[40].item(),
    "list": lambda x: str(x.tolist()),
    "gradient": lambda x: _gradient(x),
    # The CPU has no kernels for these.
    "add": lambda x: x + x,
    "promotion": lambda x: x + torch.ones(256, device=x.device),
    "less": lambda x: x < x,
    "sum": lambda x: x.sum(),
    "softmax": lambda x: x.softmax(0),
    "flip": lambda x: x.flip(0),
    "masked_fill": lambda x: x.masked_fill(torch.ones(256, dtype=torch.bool, device=x.device), 1),
    "random": lambda x: torch.randn(3, dtype=x.dtype, device=x.device),
    "arange": lambda x: torch.arange(3, dtype=x.dtype, device=x.device),
}


def _changed(x: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    copy = x.clone()
    change(copy)
    return copy


def _gradient(x: torch.Tensor) -> torch.Tensor | None:
    weight = torch.ones(256, device=x.device, requires_grad=True)
    (weight.to(x.dtype).float() * x.float().nan_to_num(0, 0, 0)).sum().backward()
    return weight.grad


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """Return a function's result, or the type of its error."""
    try:
        result = function(x)
    except (NotImplementedError, RuntimeError) as error:
        return type(error)
    return (result.dtype, result.stride(), bits(result).tolist()) if isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e8m0fnu], ids=str)  # several NaN; no sign and no 0
def test_moves_agree_with_the_cpu(dtype: torch.dtype) -> None:
    numbers = every(dtype)
    for name, function in MOVES.items():
        assert outcome(function, numbers.to("tpu")) == outcome(function, numbers), name


def test_a_dtype_is_refused_after_another_was_accepted() -> None:
    torch.randn(5, dtype=torch.float16, device="tpu")
    for dtype in (*DTYPES, torch.int32):
        with pytest.raises(NotImplementedError):
            torch.randn(5, dtype=dtype, device="tpu")


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_products(dtype: torch.dtype) -> None:
    x, y = torch.randn(8, 16).to(dtype), torch.randn(16, 4).to(dtype)
    product = x.to("tpu") @ y.to("tpu")
    assert product.dtype is dtype
    torch.testing.assert_close(product.float().cpu(), (x.float() @ y.float()).to(dtype).float(), rtol=0.13, atol=0.02)


@EIGHT
def test_saved_and_loaded(dtype: torch.dtype) -> None:
    file = io.BytesIO()
    torch.save({"weight": every(dtype).to("tpu")}, file)
    for place in ("cpu", "tpu"):
        file.seek(0)
        assert torch.equal(bits(torch.load(file, map_location=place)["weight"]), bits(every(dtype)))


def test_one_byte_an_element() -> None:
    lazytpu.sync()
    before = torch.tpu.memory_allocated()  # pyright: ignore[reportAttributeAccessIssue]
    tensor = torch.zeros(1 << 20, device="tpu").add(1).to(torch.float8_e4m3fn)
    lazytpu.sync()
    taken = torch.tpu.memory_allocated() - before  # pyright: ignore[reportAttributeAccessIssue]
    assert tensor.nbytes == taken == 1 << 20


def test_cast_weights_of_a_model() -> None:
    """Storage in 8 bits, arithmetic in bfloat16, as scripts do to save memory."""
    model = torch.nn.Linear(16, 4)
    small = copy.deepcopy(model).to("tpu", torch.float8_e4m3fn)
    x = torch.randn(3, 16)
    result = torch.nn.functional.linear(x.to("tpu"), small.weight.float(), small.bias.float())
    expected = torch.nn.functional.linear(
        x, model.weight.to(torch.float8_e4m3fn).float(), model.bias.to(torch.float8_e4m3fn).float()
    )
    torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("rows", [False, True], ids=["one scale", "a scale a row"])
def test_scaled_product(dtype: torch.dtype, rows: bool) -> None:
    """Values follow the formula: torch's own depend on the CPU, whose instructions may round 8-bit results twice."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 64, generator=generator).to(dtype)
    weight = torch.randn(48, 64, generator=generator).to(dtype).t()
    scales = (torch.rand(32, 1), torch.rand(1, 48)) if rows else (torch.tensor(0.5), torch.tensor(2.0))
    for out in (torch.float32, torch.bfloat16, None):
        keywords: dict[str, Any] = {"scale_a": scales[0], "scale_b": scales[1], "out_dtype": out}
        keywords["bias"] = None if out is None else torch.randn(48, generator=generator).to(out)
        on_device = {k: v.to("tpu") if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
        product = torch._scaled_mm(x.to("tpu"), weight.to("tpu"), **on_device)
        like = torch._scaled_mm(x, weight, **keywords)
        assert product.dtype is like.dtype and product.stride() == like.stride()
        expected = (x.float() * scales[0]) @ (weight.float() * scales[1])
        if keywords["bias"] is not None:
            expected += keywords["bias"].float()
        torch.testing.assert_close(product.cpu().float(), expected.to(like.dtype).float(), rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("dtypes", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")])
def test_scaled_products_hold_special_values(dtypes: tuple[str, str]) -> None:
    """Each product of 8-bit floats is exact, denormal numbers included; NaN and infinity reach their row and column.
    Sums have the error of 64 roundings in float32 at most: XLA chooses their order, and most of 512 cancel."""
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(512, 512, generator=generator).to(getattr(torch, name)) for name in dtypes)
    info = [torch.finfo(each.dtype) for each in (x, weight)]
    denormal = [each.smallest_normal * each.eps for each in info]
    x[3], weight[5] = (each / 2 * (torch.arange(512) % 2 * 2) for each in (torch.full((512,), n) for n in denormal))
    x[7, :2], weight[9, :2] = info[0].max, -info[1].max
    x[11, 100], weight[13, 100] = torch.nan, torch.nan
    if dtypes[0] == "float8_e5m2":
        x[15, 0] = torch.inf
    assert x[3].float().any() and weight[5].float().any()
    of_row, of_column = torch.rand(512, 1, generator=generator), torch.rand(1, 512, generator=generator)
    expected = (x.double() * of_row) @ (weight.double().t() * of_column)
    settings = {"scale_a": of_row.to("tpu"), "scale_b": of_column.to("tpu"), "out_dtype": torch.float32}
    actual = torch._scaled_mm(x.to("tpu"), weight.to("tpu").t(), **settings).cpu()
    finite = expected.isfinite()
    torch.testing.assert_close(actual[~finite], expected.float()[~finite], equal_nan=True)
    terms = (x.double().abs() * of_row) @ (weight.double().abs().t() * of_column)
    assert ((actual - expected).abs() <= 64 * 2**-24 * terms)[finite].all()


@pytest.mark.parametrize("scales", [(1e35, 1e-35), (1e-35, 1e35), (1e15, 1e15), (1e-15, 1e-15), (-1e35, 1e-30)])
def test_scales_of_any_size_leave_a_product_in_range(scales: tuple[float, float]) -> None:
    x, weight = (torch.full((16, 32), 448.0).to(torch.float8_e4m3fn) for _ in range(2))
    settings = {"scale_a": torch.tensor(scales[0]), "scale_b": torch.tensor(scales[1]), "out_dtype": torch.float32}
    expected = (x.double() * scales[0]) @ (weight.double().t() * scales[1])
    on_device = {name: y.to("tpu") if isinstance(y, torch.Tensor) else y for name, y in settings.items()}
    for mode in ("lazy", "fused", "strict"):
        with lazytpu.mode(mode), lazytpu.options(on_host=False):
            actual = torch._scaled_mm(x.to("tpu"), weight.to("tpu").t(), **on_device).cpu()
        torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=0)


WRONG_PRODUCTS: dict[str, Callable[[str], Any]] = {
    "sizes": lambda device: _scaled(device, (32, 64), (48, 32)),
    "a scale": lambda device: _scaled(device, (32, 64), (48, 64), scale=torch.rand(3)),
    "a dtype": lambda device: _scaled(device, (32, 64), (48, 64), dtype=torch.float32),
    "a scale's dtype": lambda device: _scaled(device, (32, 64), (48, 64), scale=torch.ones((), dtype=torch.float64)),
}


def _scaled(
    device: str,
    x: tuple[int, int],
    weight: tuple[int, int],
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    x_, weight_ = (torch.ones(size).to(dtype).to(device) for size in (x, weight))
    scale_ = (torch.ones(()) if scale is None else scale).to(device)
    return torch._scaled_mm(x_, weight_.t(), scale_a=scale_, scale_b=scale_)


@pytest.mark.parametrize("name", WRONG_PRODUCTS)
def test_wrong_scaled_products_are_refused_alike(name: str) -> None:
    """Or accepted by both: CPUs with 8-bit instructions accept scales that are not float32."""
    try:
        WRONG_PRODUCTS[name]("cpu")
    except (RuntimeError, ValueError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            WRONG_PRODUCTS[name]("tpu")
    else:
        assert name == "a scale's dtype"
        assert bool((WRONG_PRODUCTS[name]("tpu").float() == 64).all())
