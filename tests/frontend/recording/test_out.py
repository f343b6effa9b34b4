"""`out=` overloads that write to a part of a tensor, as DistributedDataParallel does for each gradient."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.frontend.tensors import recorder


def results(device: str, write: Any) -> Any:
    """Return the contents of the bucket after `write(x, bucket)`, with its warnings and errors."""
    x = torch.arange(1.0, 7.0, device=device).reshape(2, 3)
    bucket = torch.zeros(20, device=device)
    try:
        write(x, bucket)
    except RuntimeError as error:
        return str(error).partition("(out=")[0]
    return bucket.cpu()


WRITES = {
    "part": lambda x, b: torch.mul(x, 0.5, out=b[4:10].view(2, 3)),
    "number tensor": lambda x, b: torch.mul(x, torch.tensor(0.5, dtype=torch.float64), out=b[4:10].view(2, 3)),
    "whole": lambda x, b: torch.mul(b.new_ones(20), 3, out=b),
    "two": lambda x, b: [torch.mul(x, k, out=b[6 * k : 6 * k + 6].view(2, 3)) for k in (0, 1)],
    "strided": lambda x, b: torch.mul(x[0], 2, out=b[::2][:3]),
    "other dtype": lambda x, b: torch.mul(x.int(), 2, out=b[4:10].view(2, 3)),
    "operand": lambda x, b: torch.add(b[:6], 1, out=b[:6]),
    "overlap": lambda x, b: torch.add(b[:6], 1, out=b[3:9]),
    "sum": lambda x, b: torch.sum(x, 0, out=b[2:5]),
    "empty": lambda x, b: torch.mul(x[:0], 2, out=b[:0].view(0, 3)),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_a_part_of_a_tensor_is_written_as_on_the_cpu(name: str, mode: str) -> None:
    with lazytpu.options(mode=mode):
        actual, expected = (results(device, WRITES[name]) for device in ("tpu", "cpu"))
    assert type(actual) is type(expected)
    assert actual == expected if isinstance(actual, str) else torch.equal(actual, expected)


def test_a_conjugated_part_is_written() -> None:
    buckets: list[torch.Tensor] = []
    for device in ("tpu", "cpu"):
        bucket = torch.zeros(8, dtype=torch.complex64, device=device)
        torch.mul(torch.tensor([1 + 2j, 3j], device=device), 2, out=bucket[2:4].conj())
        buckets.append(bucket.cpu())
    assert torch.equal(*buckets)


def test_a_number_goes_to_a_tensor_of_the_host() -> None:
    out = torch.zeros((), device="cpu")
    torch.add(torch.ones((), device="tpu"), 1, out=out)
    assert out.item() == 2


def test_a_copy_within_a_storage_is_donated() -> None:
    """No name refers to the overwritten value when the copy runs (R4)."""
    with lazytpu.options(mode="strict"):
        x = torch.arange(4096.0, device="tpu")
        lazytpu.sync()
        x[:2048].copy_(x[2048:])
        assert x[0].item() == 2048
        x[1:3].copy_(x[3:5])
    assert x[:4].tolist() == [2048.0, 2051.0, 2052.0, 2051.0]


def test_a_copy_over_a_pending_value_does_not_need_it() -> None:
    """So a program between two collectives does not return each gradient for the program that overwrites it."""
    flat = torch.arange(8.0, device="tpu")
    x = torch.ones(2, 2, device="tpu") * 2
    x.copy_(flat[4:].view(2, 2))
    last = recorder().state.records()[-1]
    assert str(last.op) == "aten.clone.default"
    flat[4] = 9.0
    assert x.tolist() == [[4.0, 5.0], [6.0, 7.0]]
    x.copy_(flat[:4].view(2, 2))  # an existing value is restored when a step fails
    assert "self" in recorder().state.records()[-1].written
    assert x.tolist() == [[0.0, 1.0], [2.0, 3.0]]


RESIZED: dict[str, Any] = {
    "arange": lambda x, out: torch.arange(0, 3, 0.5, out=out),
    "range": lambda x, out: torch.range(1, 6, out=out),
    "linspace": lambda x, out: torch.linspace(0, 1, 6, out=out),
    "linspace of a tensor": lambda x, out: torch.linspace(x.sum(), 1, 6, out=out),
    "logspace": lambda x, out: torch.logspace(0, 1, 6, out=out),
    "eye": lambda x, out: torch.eye(3, out=out),
    "randperm": lambda x, out: torch.randperm(1, out=out),
    "addbmm": lambda x, out: torch.addbmm(x, x[None], x[None], out=out),
    "bernoulli": lambda x, out: torch.bernoulli(x * 0, out=out),
    "logsigmoid": lambda x, out: torch._C._nn.log_sigmoid(x, out=out),  # pyright: ignore
    "narrow_copy": lambda x, out: torch.narrow_copy(x, 0, 0, 2, out=out),
    "multinomial": lambda x, out: torch.multinomial(x.new_ones(1), 1, out=out),
    "full": lambda x, out: torch.full((2, 3), 2.0, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "sum in another dtype": lambda x, out: torch.sum(x.half(), 0, out=out),
}


@pytest.mark.parametrize("name", RESIZED)
@pytest.mark.parametrize("shape", [(7,), (2, 2, 2), (0, 2)])
def test_an_out_tensor_is_resized_with_the_warning_of_the_cpu(name: str, shape: tuple[int, ...]) -> None:
    results: list[Any] = []
    for device in ("cpu", "tpu"):
        x = torch.eye(3, device=device)
        out = torch.zeros(shape, device=device, dtype=torch.int64 if name == "multinomial" else None)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            RESIZED[name](x, out)
        said = [str(warning.message).partition(" (Triggered")[0] for warning in raised]
        results.append((said, out.shape, out.stride(), out.cpu()))
    (*described, values), (*expected, wanted) = reversed(results)
    assert described == expected
    torch.testing.assert_close(values, wanted)


def test_checks_of_large_tensors_by_small_ones_do_not_warn() -> None:
    """The dtypes are checked by the CPU's kernel on cut tensors, whose sizes need not fit."""
    x = torch.zeros(1200, 1000, device="tpu", dtype=torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch._chunk_cat([x, x], 0, 2, out=torch.empty(2, 1200 * 1000, device="tpu"))


@pytest.mark.parametrize("how", ["gaps", "transposed"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, out: torch.conj_physical(x, out=out),
        lambda x, out: torch.slice_scatter(x, x[:2] * 0, 0, 0, 2, out=out),
        lambda x, out: torch.ops.aten.clone.out(x, out=out),
        lambda x, out: torch.ops.aten.flip.out(x, [0], out=out),
        lambda x, out: torch.ops.aten.celu.out(x, out=out),
        lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.long, device=x.device))),
        lambda x, out: torch.abs(x, out=out),
    ],
)
def test_strides_of_a_resized_out_tensor(function, how: str):
    strides = []
    for device in ("cpu", "tpu"):
        source, out = torch.zeros(12, 12, device=device), torch.empty(0, device=device)
        function(source[:6, ::2] if how == "gaps" else source[:6, :6].t(), out)
        strides.append(out.stride())
    assert strides[0] == strides[1]


@pytest.mark.parametrize(
    "name",
    ["all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "norm", "std", "var", "softmax", "log_softmax"],
)
def test_reductions_write_to_a_part_of_their_operand(name: str) -> None:
    function: Any = getattr(torch, name)
    written: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        x = torch.arange(1.0, 11, device=device)
        x = x > 3 if name in ("all", "any") else x.long() if name.startswith("arg") else x
        read, out = (x[:5], x[2:7]) if "softmax" in name else (x, x[3])
        arguments = (2, 0) if name == "norm" else (0,)
        assert function(read, *arguments, out=out) is out
        written.append(x.cpu())
    torch.testing.assert_close(written[1], written[0])
