"""Samples for whose gradient torch has no meta function."""

from __future__ import annotations

import pytest
import torch

gradient = torch.ops.aten._standard_gamma_grad


def test_gamma_samples_have_gradients() -> None:
    alpha = torch.full((2000,), 5.0, device="tpu", requires_grad=True)
    torch.distributions.Gamma(alpha, torch.ones_like(alpha), validate_args=False).rsample().sum().backward()
    assert alpha.grad is not None
    assert abs(alpha.grad.mean().item() - 1) < 0.1  # the mean of the samples is alpha


def test_the_gradient_agrees_with_the_cpu() -> None:
    alpha, sample = (torch.rand(3, 4, dtype=torch.float64).t() + 0.5 for _ in range(2))
    expected = gradient(alpha, sample)
    result = gradient(alpha.to("tpu"), sample.to("tpu"))
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("first", "second"), [(torch.float32, torch.float64), (torch.int32, torch.int32)])
def test_dtypes_are_refused_as_on_the_cpu(first: torch.dtype, second: torch.dtype) -> None:
    operands = torch.ones(3, dtype=first), torch.ones(3, dtype=second)
    errors: list[tuple[type, str]] = []
    for device in ("cpu", "tpu"):
        with pytest.raises((RuntimeError, NotImplementedError)) as refused:
            gradient(*(x.to(device) for x in operands))
        errors.append((refused.type, str(refused.value)))
    assert errors[0] == errors[1]
