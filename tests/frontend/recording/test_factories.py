"""Tensors created from numbers alone: every dtype, into out= tensors, and the calls that the CPU rejects."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazytpu

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64]

# Takes `dtype=` and `device=`, or `out=`.
MAKES: dict[str, Callable[..., torch.Tensor]] = {
    "arange": lambda **o: torch.arange(2, 11, 3, **o),
    "arange down": lambda **o: torch.arange(5, 0, -2, **o),
    "arange end": lambda **o: torch.arange(6, **o),
    "arange of none": lambda **o: torch.arange(3, 3, **o),
    "range": lambda **o: torch.range(1, 7, 2, **o),
    "linspace": lambda **o: torch.linspace(-2, 9, 5, **o),
    "linspace of one": lambda **o: torch.linspace(3, 9, 1, **o),
    "linspace of none": lambda **o: torch.linspace(3, 9, 0, **o),
    "linspace too far": lambda **o: torch.linspace(0, 300, 4, **o),
    "logspace": lambda **o: torch.logspace(0, 2, 3, **o),
    "logspace of base 2": lambda **o: torch.logspace(1, 5, 5, 2, **o),
    "eye": lambda **o: torch.eye(3, **o),
    "eye wide": lambda **o: torch.eye(2, 3, **o),
    "full": lambda **o: torch.full((2, 3), 2.5, **o),
    "full complex": lambda **o: torch.full((2,), 1 + 2j, **o),
    "zeros": lambda **o: torch.zeros((2, 3), **o),
    "ones": lambda **o: torch.ones((0, 3), **o),
}
WITHOUT_OUT: dict[str, Callable[..., torch.Tensor]] = {
    "tril_indices": lambda **o: torch.tril_indices(3, 4, 1, **o),
    "triu_indices": lambda **o: torch.triu_indices(4, 3, -1, **o),
    "bartlett": lambda **o: torch.bartlett_window(5, **o),
    "blackman": lambda **o: torch.blackman_window(5, False, **o),
    "hann": lambda **o: torch.hann_window(4, **o),
    "kaiser": lambda **o: torch.kaiser_window(6, **o),
    "kaiser symmetric": lambda **o: torch.kaiser_window(6, False, 5.5, **o),
    "kaiser of one": lambda **o: torch.kaiser_window(1, **o),
    "kaiser of none": lambda **o: torch.kaiser_window(0, **o),
    "gaussian": lambda **o: torch.signal.windows.gaussian(5, std=1.5, **o),
    "empty_permuted": lambda **o: torch.empty_permuted((2, 3, 4), (1, 2, 0), **o).zero_(),
    "new_full": lambda dtype, device: torch.zeros(2, dtype=dtype, device=device).new_full((2,), 3.5),
    "new_tensor": lambda dtype, device: torch.zeros(2, dtype=dtype, device=device).new_tensor([1, 0]),
}


def attempt(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # range is deprecated, and so is resizing
        try:
            return make()
        except (RuntimeError, ValueError) as error:
            return type(error)


def same(name: str, got: Any, expected: Any) -> None:
    if isinstance(got, type) or isinstance(expected, type):
        assert got is expected, f"{name}: {got}, expected {expected}"
        return
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride()), name
    # windows in half precision round at every step
    loose = {torch.float16: 3e-3, torch.bfloat16: 2e-2}.get(expected.dtype)
    tolerance = {} if loose is None else {"rtol": loose, "atol": loose}
    torch.testing.assert_close(got.cpu(), expected, msg=lambda text: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_made_as_on_the_cpu(dtype: torch.dtype) -> None:
    def results(device: str) -> dict[str, Any]:
        options = {"dtype": dtype, "device": device}
        return {n: attempt(lambda m=make: m(**options)) for n, make in (MAKES | WITHOUT_OUT).items()}

    got, expected = results("tpu"), results("cpu")
    lazytpu.sync()
    for name in got:
        same(name, got[name], expected[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_made_into_given_tensors(dtype: torch.dtype) -> None:
    def results(device: str) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        for name, make in MAKES.items():
            for size in ((0,), (3, 1)):
                out = torch.zeros(size, dtype=dtype, device=device)
                tensors[f"{name} into {size}"] = attempt(lambda m=make, o=out: m(out=o))
        return tensors

    got, expected = results("tpu"), results("cpu")
    lazytpu.sync()
    for name in got:
        same(name, got[name], expected[name])


def test_rejected_calls() -> None:
    refused: tuple[Callable[[str], Any], ...] = (
        lambda d: torch.arange(0, 3, 0, device=d),
        lambda d: torch.arange(3, 0, device=d),
        lambda d: torch.linspace(0, 3, -1, device=d),
        lambda d: torch.eye(-1, device=d),
        lambda d: torch.kaiser_window(-1, device=d),
    )
    for make in refused:
        with pytest.raises(RuntimeError) as expected:
            make("cpu")
        with pytest.raises(RuntimeError) as got:
            make("tpu")
        assert str(got.value) == str(expected.value)


def test_an_iota_converted_to_bool() -> None:
    assert torch.arange(3, device="tpu").bool().tolist() == [False, True, True]
    assert torch.arange(0, device="tpu").bool().tolist() == []


def test_complex_numbers_fill_complex64_under_any_default_dtype_but_float64() -> None:
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            torch.set_default_dtype(dtype)
            actual, expected = torch.full((2,), 2.5j, device="tpu"), torch.full((2,), 2.5j)
            assert actual.dtype == expected.dtype and torch.equal(actual.cpu(), expected)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like"])
def test_like_factories_create_tensors_on_the_named_device(name: str, device: str) -> None:
    like = torch.ones(3, 4, device="tpu").t()
    for _ in range(2):
        result = getattr(torch, name)(like, device=device, dtype=torch.float64)
        assert (result.device.type, result.stride(), result.dtype) == (device, (1, 4), torch.float64)


def test_new_tensors_elsewhere() -> None:
    like = torch.ones(3, device="tpu")
    assert like.new_full((2,), 7, device="cpu").tolist() == [7, 7]
    state = torch.tpu.get_rng_state()
    assert torch.randint_like(like, 5, device="cpu").device.type == "cpu"
    assert torch.equal(torch.tpu.get_rng_state(), state)
