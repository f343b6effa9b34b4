"""`x[i]` with a Python int that varies, read or written: a few programs for all, and the CPU's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lazytpu
from lazytpu.frontend.recording.offsets import box_of
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.value import Layout, row_major

pytestmark = pytest.mark.usefixtures("empty_cache")  # these count compilations


def compiles() -> int:
    return lazytpu.metrics()["compiles"]


READS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "row": lambda x, i: x[i],
    "column": lambda x, i: x[:, i],
    "last": lambda x, i: x[..., -1 - i],
    "element": lambda x, i: x[i, 4 - i, 1],
    "slice": lambda x, i: x[i : i + 2],
    "slice and column": lambda x, i: x[i : i + 2, :, i],
    "two of one tensor": lambda x, i: x[i] * x[4 - i],
    "two of one column": lambda x, i: x[:, i].exp() + x[:, 4 - i, :2].sum(),
    "copied": lambda x, i: x[:, i].contiguous(),
    "a step": lambda x, i: x[i::2][:1],
    "transposed": lambda x, i: x.transpose(1, 2)[i],
    "flattened": lambda x, i: x.flatten()[i],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("mode", ["fused", "lazy", "strict"])
def test_any_index_gives_the_values_of_the_cpu(read: Callable[[Tensor, int], Tensor], mode: str) -> None:
    x = torch.arange(125.0).view(5, 5, 5) / 50
    on_device = x.to("tpu")
    with lazytpu.mode(mode):
        for i in (0, 3, 1, 2, 3, 0):
            result = read(on_device, i) * 2.0
            torch.testing.assert_close(result.cpu(), read(x, i) * 2.0)
            assert result.stride() == (read(x, i) * 2.0).stride()


def _accumulate(x: Tensor, i: int) -> None:
    x[i] += x[4 - i] if i != 2 else 3


def _swap(x: Tensor, i: int) -> None:
    x[i], x[4 - i] = x[4 - i].clone(), x[i].clone()


def _exchange_columns(x: Tensor, i: int) -> None:
    x[:, i].copy_(x[:, (i + 1) % 5])


WRITES: dict[str, Callable[[Tensor, int], Any]] = {
    "number": lambda x, i: x[i].fill_(7.5),
    "row": lambda x, i: x[i].copy_(x[0].sum(0)),
    "column": lambda x, i: x[:, i].mul_(2),
    "element": lambda x, i: x[i, 4 - i, 1].sub_(3),
    "slice": lambda x, i: x[i : i + 2].zero_(),
    "slice and column": lambda x, i: x[i : i + 2, :, i].add_(x[0, 1].clone()),
    "another row": _accumulate,
    "two rows": _swap,
    "two columns": _exchange_columns,
    "indexed": lambda x, i: x[i].index_put_((torch.tensor([1, 3], device=x.device),), x[0, :2] + 1),
    "masked": lambda x, i: x[:, i].masked_fill_(x[:, 0] > 1, 0.5),
    "transposed": lambda x, i: x.transpose(1, 2)[i].exp_(),
    "out": lambda x, i: torch.add(x[0], 1, out=x[i]) if i else None,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("mode", ["fused", "lazy", "strict"])
def test_writes_at_any_index_are_those_of_the_cpu(write: Callable[[Tensor, int], Any], mode: str) -> None:
    x = torch.arange(125.0).view(5, 5, 5) / 50
    on_device = x.to("tpu")
    other_view = on_device.flatten()
    with lazytpu.mode(mode):
        for i in (0, 3, 1, 2, 3, 0):
            versions = [y._version for y in (x, on_device)]
            results = [write(y, i) for y in (x, on_device)]
            torch.testing.assert_close(on_device.cpu(), x)
            assert other_view.tolist() == on_device.flatten().tolist()
            assert x._version - versions[0] == on_device._version - versions[1]
            if results[0] is not None:
                assert (results[1].stride(), results[1].storage_offset(), results[1]._is_view()) == (
                    results[0].stride(),
                    results[0].storage_offset(),
                    results[0]._is_view(),
                )


def test_a_write_at_a_third_index_compiles_nothing() -> None:
    x = torch.rand(9, 6)
    on_device = x.to("tpu")
    after: list[int] = []
    for i in range(9):
        for y in (x, on_device):
            y[i] = y[8 - i] * 2
            y[i, 2] += 1
        torch.testing.assert_close(on_device.cpu(), x)
        after.append(compiles())
    assert after[-1] == after[4]


def test_writes_between_reads_that_leave_records_pending_share_programs() -> None:
    """Each read runs the records it depends on, so the next trace begins with the write to the other tensor."""
    source = torch.rand(96)
    tables = [(torch.zeros(64), torch.zeros(64, dtype=torch.int64)) for _ in range(2)]
    tables[1] = (tables[1][0].to("tpu"), tables[1][1].to("tpu"))
    after: list[int] = []
    for i in range(96):
        place = 7 * i % 50
        for (total, count), values in zip(tables, (source, source.to("tpu")), strict=True):
            if count[place] == 0:
                total[place] = values[i]
            else:
                total[place] += values[i]
            count[place] += 1
        after.append(compiles())
    for expected, result in zip(*tables, strict=True):
        torch.testing.assert_close(result.cpu(), expected)
    assert after[-1] == after[72], "50 places are written once, and then again"


def test_gradients_pass_through_a_write_at_a_varying_index() -> None:
    x = torch.rand(6, 4)
    gradients: list[Tensor] = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().clone().to(device).requires_grad_()
        for i in range(6):
            buffer = leaf * 2
            buffer[i] = leaf[5 - i] * leaf[i]
            buffer[i].mul_(3)
            buffer.exp().sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_a_third_index_compiles_nothing() -> None:
    x = torch.rand(9, 6)
    on_device = x.to("tpu")
    after: list[int] = []
    for i in range(9):
        y = (on_device[i] * 2.0 + on_device[8 - i].sin()).sum()
        assert y.item() == pytest.approx((x[i] * 2.0 + x[8 - i].sin()).sum().item())
        after.append(compiles())
    assert after[-1] == after[2]


def test_the_index_varies_in_a_tensor_that_the_trace_uses_already() -> None:
    x = torch.rand(7, 3)
    on_device = x.to("tpu")
    for i in range(7):
        mean = on_device.mean()
        y = torch.maximum(on_device[i], mean) - mean
        torch.testing.assert_close(y.cpu(), torch.maximum(x[i], x.mean()) - x.mean())
        if i == 2:
            before = compiles()
    assert compiles() == before


def test_a_copy_that_is_cut_at_once_is_not_in_other_traces() -> None:
    x = torch.arange(12.0).view(4, 3).to("tpu")
    lazytpu.mark_step()
    with lazytpu.mode("strict"):
        assert [(x[i] * 2).sum().item() for i in range(3)] == [6.0, 24.0, 42.0]
    base = x + 1
    sliced = x[1:3] * 3
    assert [str(record.op) for record in recorder().state.records()] == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert (base.sum().item(), sliced.sum().item()) == (78.0, 99.0)


def test_a_write_between_two_reads_is_seen() -> None:
    x, on_device = torch.zeros(5, 2), torch.zeros(5, 2).to("tpu")
    for i in range(1, 5):
        for y in (x, on_device):
            y[i] = y[i - 1] + i
            y[0].add_(y[i])
    torch.testing.assert_close(on_device.cpu(), x)


def test_gradients_pass_through_a_varying_index() -> None:
    x = torch.rand(6, 4)
    leaf, on_device = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
    for i in range(6):
        for y in (leaf, on_device):
            (y[i].exp() * y[5 - i]).sum().backward()
    assert on_device.grad is not None
    torch.testing.assert_close(on_device.grad.cpu(), leaf.grad)


@pytest.mark.parametrize(
    ("index", "dims", "starts", "sizes"),
    [
        ((2,), [0], [2], [1]),
        ((slice(None), 1), [1], [1], [1]),
        ((slice(1, 3), slice(None), 4), [0, 2], [1, 4], [2, 1]),
        ((3, 1, 2), [0, 1, 2], [3, 1, 2], [1, 1, 1]),
    ],
)
def test_boxes_of_a_tensor(index: Any, dims: list[int], starts: list[int], sizes: list[int]) -> None:
    shape = (4, 3, 5)
    view = torch.empty(shape)[index]
    assert box_of(Layout(torch.float32, shape, row_major(shape)), view) == (dims, starts, sizes)


def test_views_that_are_no_boxes() -> None:
    shape = (4, 6)
    x, layout = torch.empty(shape), Layout(torch.float32, shape, row_major(shape))
    for view in (x, x.t(), x[:, ::2], x.view(-1)[3:9], x.diagonal(), x.view(torch.int32)[1], x[1].expand(3, 6), x[:0]):
        assert box_of(layout, view) is None
    assert box_of(Layout(torch.float32, shape, (1, 4)), x[1]) is None, "its memory is not in the order of its dims"


def test_an_op_that_reads_its_target_is_rejected_at_every_index() -> None:
    x = torch.arange(8.0).to("tpu")
    for i in (1, 2, 3):
        lazytpu.sync()
        with pytest.raises(RuntimeError, match="single memory location"):
            x[i + 1 :].add_(x[i:7])
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(x[i : i + 3], 1, out=x[i + 1 : i + 4])
    for i in (0, 1, 2):
        x[4:6].add_(x[i : i + 2])
    expected = torch.arange(8.0)
    for i in (0, 1, 2):
        expected[4:6].add_(expected[i : i + 2])
    assert x.tolist() == expected.tolist()
