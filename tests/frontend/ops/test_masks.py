"""Writes through masks, without reading how many elements they select."""

from __future__ import annotations

import pytest
import torch

import lazytpu

X = torch.arange(12.0).reshape(3, 4)
MASK = X > 6
ROWS = torch.tensor([True, False, True])
COLUMNS = torch.tensor([True, False, True, True])
CASES = {
    "elements": ((MASK,), torch.arange(5.0)),
    "one number": ((MASK,), torch.tensor(3.0)),
    "rows": ((ROWS,), torch.arange(8.0).reshape(2, 4)),
    "one row": ((ROWS,), torch.ones(4)),
    "one value a row": ((ROWS,), torch.ones(2, 1)),
    "columns": ((None, COLUMNS), torch.arange(9.0).reshape(3, 3)),
    "a row of columns": ((None, COLUMNS), torch.arange(3.0)),
    "nothing": ((MASK & False,), torch.ones(0)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    indices, values = CASES[name]
    for accumulate in (False, True):
        results = []
        for device in ("cpu", "tpu"):
            x = X.clone().to(device)
            where = [None if i is None else i.to(device) for i in indices]
            lazytpu.sync()
            before = lazytpu.metrics()["steps"]
            torch.ops.aten.index_put_(x, where, values.to(device), accumulate)
            assert lazytpu.metrics()["steps"] == before
            results.append(x.cpu())
        assert torch.equal(*results)


def test_gradients() -> None:
    results = []
    for device in ("cpu", "tpu"):
        x, values = X.clone().to(device).requires_grad_(), torch.arange(5.0).to(device).requires_grad_()
        y = x * 2
        y[MASK.to(device)] = values
        (y * y).sum().backward()
        assert x.grad is not None and values.grad is not None
        results.append((x.grad.cpu(), values.grad.cpu()))
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("count", [0, 4, 6])
def test_too_many_values_and_too_few(count: int) -> None:
    """Detected at the next read: only the mask determines the number of values."""
    x = X.clone().to("tpu")
    x[MASK.to("tpu")] = torch.ones(count, device="tpu")
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x.cpu()


def test_refused_at_the_call() -> None:
    for device in ("cpu", "tpu"):
        x, rows = X.clone().to(device), ROWS.to(device)
        with pytest.raises(RuntimeError, match="shape mismatch"):
            x[rows] = torch.ones(2, 3, device=device)
        with pytest.raises(RuntimeError, match="dtypes match"):
            x.index_put_((rows,), torch.ones(2, 4, device=device, dtype=torch.int64))
        with pytest.raises(IndexError, match="mask"):
            x[COLUMNS.to(device)] = 1.0
