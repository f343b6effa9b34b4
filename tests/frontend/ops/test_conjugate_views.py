"""Lazily conjugated and negated views: writes through them reach the underlying memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "fill_": lambda x: x.conj().fill_(1 + 3j),
    "zero_": lambda x: x.conj().zero_(),
    "add_": lambda x: x.conj().add_(1j),
    "mul_": lambda x: x.conj().mul_(2j),
    "copy_ from the CPU": lambda x: x.conj().copy_(torch.tensor([1 + 1j, 2 + 1j])),
    "copy_ from a conjugate": lambda x: x.conj().copy_(torch.tensor([1 + 1j, 2 + 1j]).conj()),
    "copy_ from the device": lambda x: x.conj().copy_(x * 2),
    "an element": lambda x: x.conj().__setitem__(0, 7j),
    "out=": lambda x: torch.add(x, 1j, out=x.conj()),
    "an imaginary part": lambda x: x.conj().imag.fill_(3),
    "an imaginary part of itself": lambda x: x.conj().imag.add_(x.conj().imag),
    "a part's element": lambda x: x.conj().imag.__setitem__(0, 7),
    "conj_physical_": lambda x: x.conj_physical_(),
    "conj_physical_ of a conjugate": lambda x: x.conj().conj_physical_(),
}


@pytest.mark.parametrize("name", WRITES, ids=str)
def test_writes_reach_the_base(name: str) -> None:
    plain = torch.tensor([1 + 2j, 3 - 1j])
    x = plain.to("tpu")
    WRITES[name](plain)
    WRITES[name](x)
    torch.testing.assert_close(x.cpu(), plain)


def test_conjugates_go_both_ways() -> None:
    plain = torch.tensor([1 + 2j, 3 - 1j])
    assert plain.conj().to("tpu").tolist() == [1 - 2j, 3 + 1j]
    assert plain.to("tpu").conj().cpu().tolist() == [1 - 2j, 3 + 1j]
    target = torch.zeros(2, dtype=torch.complex64)
    target.conj().copy_(plain.to("tpu"))
    assert target.tolist() == [1 - 2j, 3 + 1j]
