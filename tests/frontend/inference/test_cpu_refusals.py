"""Calls that only the CPU's kernels reject, or warn about, and similar calls that are valid."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import lazytpu

DRAWN = (torch.complex64, torch.complex128, torch.float16, torch.int64, torch.uint8, torch.bool)


def outcome(call: Callable[[str], object], device: str) -> object:
    try:
        return call(device)
    except (RuntimeError, IndexError) as error:  # NotImplementedError is a RuntimeError
        return type(error), str(error).split(" (")[0]


@pytest.mark.parametrize("dtype", DRAWN)
@pytest.mark.parametrize("name", ["rand", "randn", "rand_like", "randn_like"])
def test_random_numbers_of(dtype: torch.dtype, name: str) -> None:
    def call(device: str) -> object:
        size = torch.zeros(5, device=device) if name.endswith("like") else (5,)
        x = getattr(torch, name)(size, dtype=dtype, device=device)
        return x.dtype, x.shape

    assert outcome(call, "tpu") == outcome(call, "cpu")


def test_complex_numbers_have_two_random_parts() -> None:
    torch.manual_seed(0)
    x = torch.rand(2000, dtype=torch.complex64, device="tpu").cpu()
    for component in (x.real, x.imag):
        assert component.min() >= 0
        assert component.max() < 1
        assert abs(component.mean() - 0.5) < 0.03
    assert abs(torch.corrcoef(torch.stack([x.real, x.imag]))[0, 1]) < 0.1


CONVOLUTIONS = {
    "no input channels": ((2, 0, 5, 5), (3, 0, 3, 3), 3),
    "no input channels, unbatched": ((0, 5, 5), (3, 0, 3, 3), 3),
    "no input channels of a vector": ((2, 0, 5), (3, 0, 3), 3),
    "no input channels of a volume": ((2, 0, 4, 4, 4), (3, 0, 3, 3, 3), 3),
    "no bias": ((2, 0, 5, 5), (3, 0, 3, 3), None),
    "no batch": ((0, 2, 5, 5), (3, 2, 3, 3), 3),
    "no output channels": ((2, 2, 5, 5), (0, 2, 3, 3), 0),
    "no columns": ((2, 2, 5, 0), (3, 2, 3, 3), 3),
    "no elements of a vector": ((2, 2, 0), (3, 2, 3), 3),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_empty_convolutions(name: str) -> None:
    size, kernel, outputs = CONVOLUTIONS[name]

    def call(device: str) -> object:
        x, w = (torch.ones(s, device=device, requires_grad=True) for s in (size, kernel))
        bias = None if outputs is None else torch.ones(outputs, device=device, requires_grad=True)
        y = getattr(functional, f"conv{len(kernel) - 2}d")(x, w, bias, padding=2)
        y.sum().backward()
        results = [y, x.grad, w.grad, *([] if bias is None else [bias.grad])]
        return [(r.shape, r.tolist()) for r in results]

    assert outcome(call, "tpu") == outcome(call, "cpu")


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("samples", [(1, 3), (2, 3), (3, 3), (2, 2), (2, 4), (2,)])
def test_samples_of_fractional_pooling(rank: int, batch: int | None, samples: tuple[int, ...]) -> None:
    size = ([] if batch is None else [batch]) + [3] + [5] * rank

    def call(device: str) -> object:
        x = torch.arange(torch.Size(size).numel(), dtype=torch.float32).view(size).to(device)
        chosen = torch.linspace(0, 0.9, torch.Size(samples).numel() * rank).view(*samples, rank).to(device)
        pool = getattr(functional, f"fractional_max_pool{rank}d")
        y = pool(x, 2, output_size=3, _random_samples=chosen)
        return y.tolist()

    with lazytpu.mode("fused"):
        assert outcome(call, "tpu") == outcome(call, "cpu")


WARNED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "read": lambda x, mask: x[mask],
    "write": lambda x, mask: x.index_put_((mask, torch.tensor([0, 1]).to(x.device)), x[0, 0].clone()),
    "one value": lambda x, mask: x.index_put_((mask,), torch.tensor(5.0).to(x.device)),
}


@pytest.mark.parametrize("name", WARNED)
def test_bytes_as_a_mask(name: str) -> None:
    def call(device: str) -> object:
        x, mask = torch.arange(6.0).view(3, 2).to(device), torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = WARNED[name](x, mask).tolist()
        return values, {str(w.message).split(" (Triggered")[0].strip() for w in caught}

    assert outcome(call, "tpu") == outcome(call, "cpu")


def test_no_indices() -> None:
    with pytest.raises(RuntimeError, match="at least one index"):
        torch.ones(3, device="tpu").index_put_((), torch.ones((), device="tpu"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.complex64, torch.bool])
@pytest.mark.parametrize("coalesced", [False, True])
def test_sparse_in_place(dtype: torch.dtype, coalesced: bool) -> None:
    def call(device: str, name: str) -> object:
        values = torch.tensor([1, 1, 0]).to(dtype)
        x = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]]), values, (3,), check_invariants=True).to(device)
        x = x.coalesce() if coalesced else x
        return getattr(x, name)().cpu().to_dense().tolist()

    for name in ("asin_", "abs_", "neg_", "floor_", "relu_", "sqrt_", "sgn_"):
        expected, got = (outcome(lambda d, name=name: call(d, name), device) for device in ("cpu", "tpu"))
        if isinstance(expected, list):
            torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), equal_nan=True)
        else:
            assert got == expected, name


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storage_type() -> None:
    for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.complex128, torch.bool):
        assert torch.zeros(2, dtype=dtype, device="tpu").storage_type() is torch.zeros(2, dtype=dtype).storage_type()


@pytest.mark.parametrize("size", [(), (2,), (3, 2), (3, 16), (1, 16), (1, 3, 2), (5, 1, 1), (0, 2)], ids=str)
@pytest.mark.parametrize("name", ["addmm", "addmm_", "addmv", "addmv_", "baddbmm", "baddbmm_"])
def test_products_that_are_added_to(name: str, size: tuple[int, ...]) -> None:
    factors = {"addmm": ((3, 4), (4, 2)), "addmv": ((3, 4), (4,)), "baddbmm": ((5, 3, 4), (5, 4, 2))}

    def call(device: str) -> object:
        x, *factors_of = (torch.ones(shape, device=device) for shape in (size, *factors[name.rstrip("_")]))
        result = getattr(x, name)(*factors_of)
        return result.shape, result.stride()

    assert outcome(call, "tpu") == outcome(call, "cpu")
