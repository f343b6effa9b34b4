"""Histograms, with and without bounds."""

from __future__ import annotations

import pytest
import torch
from harness import check

histc = torch.ops.aten.histc.default


@pytest.mark.parametrize("bounds", [(0, 0), (-1, 1), (0.25, 0.75), (-3, 7)])
def test_histc(bounds: tuple[float, float]) -> None:
    x = torch.linspace(-2, 2, 41).reshape(41)
    check(histc, x, 8, *bounds)
    check(histc, torch.cat([x, torch.tensor([float("nan")])]), 5, -1, 1)


def test_one_value_and_none() -> None:
    check(histc, torch.full((3, 2), 4.0), 4, 0, 0)
    check(histc, torch.zeros(0), 4, 0, 0)
