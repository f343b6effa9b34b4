"""Conjugated and negated views as operands and as targets: all observable properties of the results equal the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontend.alike import numbers, same, seen

A = torch.ops.aten


def conjugated_operands(d: str) -> list[Any]:
    z = numbers(d)
    c, m = z.conj(), z.mH
    results = [c + 1, c * z, m @ z, z @ m, torch.addmm(torch.zeros(3, 3, dtype=z.dtype, device=d), m, z), c.abs()]
    results += [torch.einsum("ij,kj->ik", z, c), torch.bmm(m[None], z[None]), c.real, c.imag + 1, c.imag, c.clone()]
    results += [c.contiguous(), m.contiguous(), c.conj_physical(), m.conj_physical(), torch.cat([c, z]), c.view(-1)]
    results += [torch.dot(c[0], z[0]), torch.vdot(c[0], z[0]), torch.outer(c[0], z[1]), c.imag.neg(), c.imag.clone()]
    results += [
        torch.where(c.real > 1, c, z),
        F.linear(z, c),
        torch.matmul(c, m[None]),
        c.cumsum(0),
        torch.zeros_like(c),
    ]
    return [*results, c.tolist(), c.imag.tolist(), *A._foreach_mul([c, z], 2.0), torch.fft.fft(c)]


def conjugated_views_that_are_written(d: str) -> list[Any]:
    z = numbers(d)
    z.conj()[:, torch.tensor([0, 2], device=d)] = torch.tensor(1j)
    z.conj().masked_fill_(z.real > 3, 4j)
    z.conj().index_add_(0, torch.tensor([1], device=d), z[:1].clone())
    z.conj().addmm_(z[:, :2].clone(), z.clone())
    z.mH.mul_(1j)
    n = z.conj().imag
    n.t().mul_(2)
    n[0, 0] = 50
    targets = [torch.zeros(n, dtype=z.dtype, device=d) for n in ((2, 3), (2, 2), (3,))]
    torch.mul(z, 2, out=targets[0].conj())
    torch.mm(z, z.mH, out=targets[1].conj())
    torch.sum(z, 0, out=targets[2].conj())
    torch.mul(z.real, 2, out=targets[0].conj().imag)
    return [z, n, *targets]


def gradients_of_conjugates(d: str) -> Any:
    z = numbers(d).requires_grad_()
    ((z.mH @ z).abs().square().sum() + (z.conj().imag * 3).sum()).backward()
    return z.grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function",
    [conjugated_operands, conjugated_views_that_are_written, gradients_of_conjugates],
    ids=lambda f: f.__name__,
)
def test_a_case_agrees_with_the_cpu(function: Callable[[str], Any]) -> None:
    same(seen(function("tpu")), seen(function("cpu")))
