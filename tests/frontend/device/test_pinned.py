"""Pinned memory: supported, and ordinary memory."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset


def test_pinning_copies() -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    y = x.pin_memory()
    assert torch.equal(x, y)
    assert y.device.type == "cpu"
    y.zero_()
    assert x.sum() == 15


def test_data_loader() -> None:
    data = TensorDataset(torch.arange(32.0).reshape(16, 2), torch.arange(16))
    rows = [(x.to("tpu", non_blocking=True), y) for x, y in DataLoader(data, batch_size=4, pin_memory=True)]
    assert torch.equal(torch.cat([x.cpu() for x, _ in rows]), data.tensors[0])


def test_pinned_memory_reports_to_be_pinned() -> None:
    x = torch.arange(6.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned.view(2, 3)[1].is_pinned() and not x.is_pinned()
    assert pinned.pin_memory() is pinned
    assert not pinned.clone().is_pinned()
