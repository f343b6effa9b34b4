"""all_to_all with parts of unequal sizes. Each function runs on both ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import lazytpu
from tests.distributed.cases.samples import FLOATS, INTEGERS, own, sample_of, samples_of_all


def _exchanged(tensors: list[torch.Tensor], sizes: list[list[int]]) -> None:
    """Rank i sends `sizes[i][j]` rows of its tensor to rank j."""
    rank = dist.get_rank()
    incoming = [row[rank] for row in sizes]
    got = torch.zeros(sum(incoming), *tensors[0].shape[1:], dtype=tensors[0].dtype, device="tpu")
    dist.all_to_all_single(got, own(tensors), incoming, sizes[rank])
    expected = torch.cat([tensor.split(row)[rank] for tensor, row in zip(tensors, sizes, strict=True)])
    assert got.device.type == "tpu"
    assert torch.equal(got.cpu().view(torch.uint8), expected.view(torch.uint8)), (tensors[0].dtype, sizes)


def unequal_parts() -> None:
    """Every dtype, and parts, rows and tensors that are empty."""
    one_byte = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)
    for dtype in (*FLOATS, *INTEGERS, torch.complex64, torch.complex128, *one_byte):
        for sizes in ([[1, 3], [2, 2]], [[0, 4], [1, 3]]):
            _exchanged(samples_of_all(dtype, 4, 2), sizes)
    for sizes in ([[0, 0], [3, 1]], [[2, 0], [0, 1]], [[0, 0], [0, 0]], [[2, 2], [2, 2]], [[17, 40], [3, 0]]):
        for row_shape in ((), (3, 2), (0,)):
            samples = [sample_of(i, torch.float32, sum(row), *row_shape) for i, row in enumerate(sizes)]
            _exchanged(samples, sizes)
    rank = dist.get_rank()
    shapes = [[(2, 3), (4,)], [(), (0, 2)]]  # shapes that rank i sends to rank j
    for dtype in (torch.float32, torch.complex64, torch.bool, torch.float8_e4m3fn):
        sent = [[sample_of(2 * i + j, torch.float32, *shapes[i][j]).to(dtype) for j in range(2)] for i in range(2)]
        got = [torch.zeros(shapes[i][rank], dtype=dtype, device="tpu") for i in range(2)]
        dist.all_to_all(got, [received.to("tpu") for received in sent[rank]])
        for part, expected in zip(got, sent, strict=True):
            assert torch.equal(part.cpu().reshape(-1).view(torch.uint8), expected[rank].reshape(-1).view(torch.uint8))
    turned = torch.arange(6.0, device="tpu").reshape(2, 3).T  # rows that are not adjacent in memory
    wide = torch.zeros(3, 4, device="tpu")
    sizes = [2, 1] if rank == 0 else [1, 2]
    dist.all_to_all_single(wide[:, :2], turned, sizes, sizes)
    assert wide[:, :2].tolist() == ([[0, 3], [1, 4], [0, 3]] if rank == 0 else [[2, 5], [1, 4], [2, 5]])


def sizes_of_parts_that_change() -> None:
    """Other sizes of tensors of equal shapes compile nothing, but for the whole of a cut that recurs."""
    compiled: list[int] = []
    with lazytpu.options(collectives="checked", buckets="off"):
        for first in (17, 18, 17):  # padded to 18
            _exchanged(samples_of_all(torch.float32, 32, 1), [[first, 32 - first], [32 - first, first]])
            compiled.append(lazytpu.metrics()["compiles"])
    assert len(set(compiled)) == 1, compiled


def parts_that_disagree() -> None:
    """An error on both ranks, which can continue afterwards."""
    rank = dist.get_rank()
    x, got = torch.ones(4, device="tpu"), torch.zeros(4, device="tpu")
    with pytest.raises(ValueError, match="rank 0 sends 3 to rank 1, which expects 2"):
        dist.all_to_all_single(got, x, [[1, 3], [2, 2]][rank], [[1, 3], [3, 1]][rank])
    with pytest.raises(ValueError, match="the split sizes of rank 1 are not 2 sizes that add up"):
        dist.all_to_all_single(got, x, [2, 2], [[2, 2], [2, 3]][rank])
    with pytest.raises(ValueError, match="the split sizes of rank 0 are not"):
        dist.all_to_all([got, got], [x, x, x][: 3 - rank])
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4
