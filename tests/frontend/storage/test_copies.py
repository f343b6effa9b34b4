"""Copies to, from and on the device: values, strides, dtypes and errors equal the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

ramp = torch.arange(12.0).reshape(3, 4)

SOURCES: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: ramp.clone(),
    "transposed": lambda: ramp.t(),
    "sliced": lambda: ramp[1:, ::2],
    "expanded": lambda: torch.tensor([[1.0], [2.0]]).expand(2, 3),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "0-d": lambda: torch.tensor(3.5),
    "no elements": lambda: torch.zeros(0, 3).t(),
    "conjugated": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "bfloat16": lambda: ramp.bfloat16(),
    "bool": lambda: ramp > 3,
    "uint64": lambda: torch.tensor([2**63 + 1, 5], dtype=torch.uint64),
}


@pytest.mark.parametrize("name", SOURCES)
def test_there_and_back(name: str) -> None:
    source = SOURCES[name]()
    back = source.to("tpu").cpu()
    torch.testing.assert_close(back, source.resolve_neg().resolve_conj(), rtol=0, atol=0)
    if source.numel():
        assert back.stride() == torch.empty_like(source, memory_format=torch.preserve_format).stride()


@pytest.mark.parametrize("name", ["contiguous", "0-d", "no elements", "bfloat16", "bool"])
def test_memory_on_both_sides_of_a_copy_can_be_resized(name: str) -> None:
    source = SOURCES[name]().clone()
    on_device = source.to("tpu")
    constant = torch.zeros(3, dtype=source.dtype, device="tpu")
    for host in (source, on_device.cpu(), (on_device * 1).cpu(), constant.cpu()):
        assert host.resize_(100).fill_(1).sum() == 100
    assert on_device.shape == SOURCES[name]().shape and torch.equal(on_device.cpu(), SOURCES[name]())


TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "row": lambda t: t[1],
    "columns": lambda t: t[:, 1:3],
    "diagonal": lambda t: t.diagonal(),
    "no elements": lambda t: t[:0],
    "expanded": lambda t: t[:, :1].expand(3, 4),
}
GIVEN: dict[str, Tensor] = {
    "0-d": torch.tensor(2.75),
    "one element, more dims": torch.ones(1, 1, 1),
    "row": torch.arange(4.0),
    "column": torch.arange(3.0)[:, None],
    "same": -ramp,
    "integers": torch.arange(4, dtype=torch.int16),
    "too long": torch.ones(5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("target", TARGETS)
def test_copies_agree_with_the_cpu(target: str, given: str, dtype: torch.dtype) -> None:
    """From the CPU and from the device: the same contents, or the same error."""
    expected = ramp.to(dtype)
    try:
        view = TARGETS[target](expected.clone())
        expected = view.copy_(GIVEN[given]).clone()
        error = None
    except RuntimeError as raised:
        error = str(raised)
    for device in ("cpu", "tpu"):
        view = TARGETS[target](ramp.to(dtype).to("tpu"))
        source = GIVEN[given].to(device)
        if error is None:
            assert view.copy_(source).cpu().equal(expected)
        else:
            with pytest.raises(RuntimeError) as caught:
                view.copy_(source)
            assert str(caught.value) == error


def test_a_number_that_the_dtype_cannot_hold_wraps_as_in_a_copy() -> None:
    assert torch.zeros(3, dtype=torch.int8).to("tpu").copy_(torch.tensor(300)).tolist() == [44] * 3
    nan = torch.tensor(float("nan"))
    assert torch.zeros(3, dtype=torch.int64).to("tpu").copy_(nan).tolist() == [int(nan.long())] * 3


def test_a_copy_shares_nothing_that_is_written() -> None:
    x = ramp.to("tpu")
    y, z = x.clone(), torch.empty_like(x).copy_(x)
    x.zero_()
    y[0] = 5
    assert z.cpu().equal(ramp)
    assert y[1:].cpu().equal(ramp[1:])


def test_an_import_is_a_snapshot_and_an_export_is_the_users() -> None:
    source = ramp.clone()
    x = source.to("tpu")
    source.zero_()
    back = x.cpu()
    back.fill_(7)
    assert x.cpu().equal(ramp)


def test_a_view_of_another_dtype_that_leaves_bytes_over_is_read() -> None:
    x = torch.arange(6, dtype=torch.uint8)
    assert x.to("tpu")[:4].view(torch.int32).tolist() == x[:4].view(torch.int32).tolist()


def test_lazy_clones() -> None:
    """On the CPU, `_lazy_clone` copies a storage at the first write; here no storage is shared."""
    for view in (lambda x: x, lambda x: x[:, 1::2], lambda x: x.t()):
        kept = {}
        for device in ("cpu", "tpu"):
            x = view(torch.arange(12.0, device=device).reshape(3, 4)).requires_grad_()
            clone = torch.ops.aten._lazy_clone.default(x)
            (clone * 3).sum().backward()
            with torch.no_grad():
                clone.add_(1)
            kept[device] = clone.detach().cpu(), x.detach().cpu(), x.grad.cpu(), clone.stride(), clone.storage_offset()
        assert all(map(torch.equal, kept["cpu"][:3], kept["tpu"][:3])) and kept["cpu"][3:] == kept["tpu"][3:]
