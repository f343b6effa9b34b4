"""`.item()` returns the same number as on the CPU, and creates no tensor for it."""

from __future__ import annotations

import pytest
import torch

import lazytpu
from lazytpu.frontend.storage import copies

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_of_every_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.1, 3.0, 200.7], [1.0, 0.0, 77.0]]).to(dtype)
    for host, device in ((x, x.to("tpu")), (x.t(), x.to("tpu").t()), (x.t(), x.t().to("tpu"))):
        for i in range(host.shape[0]):
            for j in range(host.shape[1]):
                expected, got = host[i, j].item(), device[i, j].item()
                assert type(got) is type(expected) and got == expected


def test_other_kinds_of_numbers() -> None:
    x = torch.tensor([1.5, float("nan"), -0.0], device="tpu")
    assert str([element.item() for element in x]) == "[1.5, nan, -0.0]"
    assert x.view(torch.int32)[0].item() == torch.tensor(1.5).view(torch.int32).item()
    assert torch.tensor([1 + 2j]).to("tpu").conj()[0].item() == 1 - 2j
    assert torch.empty((), device="tpu").item() == 0.0
    pending = (x[:1] * 2).sum()
    assert pending.item() == 3.0
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        x.item()


def test_no_tensor_is_made_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4.0, device="tpu")
    lazytpu.sync()
    monkeypatch.setattr(copies, "to_cpu", None)
    assert [x[i].item() for i in range(4)] == [0.0, 1.0, 2.0, 3.0]
