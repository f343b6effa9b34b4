"""Assertions of values on the device."""

from __future__ import annotations

import pytest
import torch

import lazytpu

aten = torch.ops.aten


def test_ops_after_an_assertion_depend_on_it() -> None:
    x = torch.ones(3).to("tpu")
    before = x * 3
    aten._assert_async(x.sum() > 2)
    assert (x + 1).sum().item() == 6
    aten._assert_async.msg(x.sum() > 4, "too few")
    after = x * 2
    lazytpu.mark_step()
    assert before.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="too few"):
        after.cpu()
    aten._assert_async(x.sum() < 0)
    with pytest.raises(RuntimeError, match="nonzero value"):
        lazytpu.sync()
