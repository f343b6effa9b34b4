"""Every collective, with what the values must be. Each function runs on both ranks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, distributed_c10d

import lazytpu
from lazytpu.frontend.recording.tensors import recorder

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
KINDS: dict[Any, Callable[..., Any]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.PRODUCT: operator.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}


def _sample(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """The data of a rank, on the CPU."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 3
    if dtype.is_complex:
        return torch.complex(made, made.flip(0) if made.dim() else made).to(dtype)
    return made.abs().to(dtype) if dtype == torch.uint8 else made.to(dtype)


def _samples(dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    return [_sample(rank, dtype, *shape) for rank in range(dist.get_world_size())]


def _check(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), expected)


def _mine(samples: list[torch.Tensor]) -> torch.Tensor:
    return samples[dist.get_rank()].to("tpu")


def all_reduce() -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.complex64, torch.complex128):
        for op, combine in KINDS.items():
            if dtype.is_complex and op != ReduceOp.SUM:
                continue
            samples = _samples(dtype, 2, 3)
            mine = _mine(samples)
            dist.all_reduce(mine, op)
            _check(mine, functools.reduce(combine, samples))


def booleans() -> None:
    for op, combine in ((ReduceOp.SUM, torch.logical_or), (ReduceOp.PRODUCT, torch.logical_and)):
        samples = [sample > 0 for sample in _samples(torch.float32, 7)]
        mine = _mine(samples)
        dist.all_reduce(mine, op)
        _check(mine, functools.reduce(combine, samples))


def averages() -> None:
    for dtype in (*FLOATS, torch.int32):
        samples = _samples(dtype, 5)
        mine = _mine(samples)
        dist.all_reduce(mine, ReduceOp.AVG)
        total = sum(samples[1:], samples[0])
        _check(mine, total / 2 if dtype.is_floating_point else total.div(2, rounding_mode="trunc"))


def premultiplied() -> None:
    samples = _samples(torch.float32, 5)
    mine = _mine(samples)
    half: Any = dist._make_nccl_premul_sum(0.5)  # pyright: ignore[reportPrivateImportUsage]
    dist.all_reduce(mine, half)
    _check(mine, samples[0] * 0.5 + samples[1] * 0.5)


def bitwise() -> None:
    for op, combine in ((ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or)):
        samples = _samples(torch.int32, 5)
        mine = _mine(samples)
        dist.all_reduce(mine, op)
        _check(mine, combine(*samples))
    samples = [sample > 0 for sample in _samples(torch.float32, 5)]
    mine = _mine(samples)
    dist.all_reduce(mine, ReduceOp.BXOR)
    _check(mine, samples[0] ^ samples[1])


def refused() -> None:
    for dtype, op in ((torch.bool, ReduceOp.AVG), (torch.float32, ReduceOp.BAND)):
        with pytest.raises(RuntimeError, match=str(dtype)):
            dist.all_reduce(torch.ones(2, device="tpu").to(dtype), op)
    one = torch.ones(2, device="tpu")
    with pytest.raises(ValueError, match="all of its tensors on 'tpu'; one is on 'cpu'"):
        dist.all_gather_single(one, torch.ones(1))
    with pytest.raises(ValueError, match="a list of 2 tensors, one for each member; got 3"):
        dist.all_gather([one] * 3, one)
    if dist.get_rank() == 0:  # others give no list
        with pytest.raises(ValueError, match="gather expected a list of 2 tensors"):
            dist.gather(one, [one])
        with pytest.raises(ValueError, match="scatter expected a list of 2 tensors"):
            dist.scatter(one, [one])
    _check(one, torch.ones(2))


def shapes() -> None:
    """No dimensions, no elements, views of larger tensors, other strides."""
    for shape in ((), (0,), (3, 0), (1, 1, 1)):
        samples = _samples(torch.float32, *shape)
        mine = _mine(samples)
        dist.all_reduce(mine)
        _check(mine, samples[0] + samples[1])
    samples = _samples(torch.float32, 4, 6)
    whole = _mine(samples)
    dist.all_reduce(whole[1:3, ::2])
    expected = samples[dist.get_rank()].clone()
    expected[1:3, ::2] = samples[0][1:3, ::2] + samples[1][1:3, ::2]
    _check(whole, expected)
    turned = _mine(samples).t()
    dist.all_reduce(turned)
    _check(turned, (samples[0] + samples[1]).t())


def broadcast() -> None:
    """The bits of the root, of every dtype, with -0.0 and NaN."""
    special = torch.tensor([-0.0, float("nan"), float("inf"), 1.5])
    for dtype in (*FLOATS, *INTEGERS, torch.complex64, torch.float8_e4m3fn):
        for root in (0, 1):
            source = special.to(dtype) if not dtype.is_floating_point or dtype in FLOATS else special[:1].to(dtype)
            mine = (source if dist.get_rank() == root else torch.zeros_like(source)).to("tpu")
            dist.broadcast(mine, root)
            assert mine.cpu().view(torch.uint8).tolist() == source.view(torch.uint8).tolist(), dtype
    flags = torch.tensor([True, False, dist.get_rank() == 1], device="tpu")
    dist.broadcast(flags, 1)
    assert flags.tolist() == [True, False, True]


def never_written() -> None:
    """Memory that nothing has written, as the ranks that receive have it: no constant of the collective's program."""
    is_root = dist.get_rank() == 0
    for dtype in (torch.uint8, torch.float32, torch.complex64):
        source = _sample(0, dtype, 5)
        mine = source.to("tpu") if is_root else torch.empty(5, dtype=dtype, device="tpu")
        dist.broadcast(mine, 0)
        _check(mine, source)
    summed = torch.ones(3, device="tpu") if is_root else torch.empty(3, device="tpu")
    dist.all_reduce(summed)
    _check(summed, torch.ones(3))
    texts: list[Any] = ["a text" if is_root else None]
    dist.broadcast_object_list(texts, 0, device=torch.device("tpu"))
    assert texts == ["a text"]


def all_gather() -> None:
    for dtype in (torch.float32, torch.bool, torch.int64, torch.complex64, torch.bfloat16):
        samples = _samples(dtype, 2, 3)
        parts = [torch.zeros(2, 3, dtype=dtype, device="tpu") for _ in samples]
        dist.all_gather(parts, _mine(samples))
        for part, expected in zip(parts, samples, strict=True):
            _check(part, expected)
        whole = torch.zeros(4, 3, dtype=dtype, device="tpu")
        dist.all_gather_single(whole, _mine(samples))
        _check(whole, torch.cat(samples))


def uneven_lists() -> None:
    """Each member's part has a size of its own."""
    samples = [_sample(rank, torch.float32, rank + 1, 2) for rank in range(2)]
    parts = [torch.zeros_like(sample).to("tpu") for sample in samples]
    dist.all_gather(parts, _mine(samples))
    for part, expected in zip(parts, samples, strict=True):
        _check(part, expected)
    inputs = [sample.to("tpu") for sample in samples]
    mine = torch.zeros_like(inputs[dist.get_rank()])
    dist.reduce_scatter(mine, inputs)
    _check(mine, samples[dist.get_rank()] * 2)


def reduce_scatter() -> None:
    for op, combine in KINDS.items():
        samples = _samples(torch.float32, 4, 3)
        expected = functools.reduce(combine, samples).chunk(2)[dist.get_rank()]
        mine = torch.zeros(2, 3, device="tpu")
        dist.reduce_scatter_single(mine, _mine(samples), op)
        _check(mine, expected)
        listed = torch.zeros(2, 3, device="tpu")
        dist.reduce_scatter(listed, list(_mine(samples).chunk(2)), op)
        _check(listed, expected)
    samples = _samples(torch.complex64, 4)
    mine = torch.zeros(2, dtype=torch.complex64, device="tpu")
    dist.reduce_scatter_single(mine, _mine(samples))
    _check(mine, sum(samples[1:], samples[0]).chunk(2)[dist.get_rank()])


def to_one_root() -> None:
    rank, samples = dist.get_rank(), _samples(torch.float32, 3)
    mine = _mine(samples)
    dist.reduce(mine, 1)
    _check(mine, samples[0] + samples[1] if rank == 1 else samples[0])
    parts = [torch.zeros(3, device="tpu") for _ in samples] if rank == 0 else None
    dist.gather(_mine(samples), parts, 0)
    for part, expected in zip(parts or [], samples, strict=False):
        _check(part, expected)
    received = torch.zeros(3, device="tpu")
    dist.scatter(received, [sample.to("tpu") for sample in samples] if rank == 1 else None, 1)
    _check(received, samples[rank])


def all_to_all() -> None:
    rank, samples = dist.get_rank(), _samples(torch.float32, 4, 2)
    mine = torch.zeros(4, 2, device="tpu")
    dist.all_to_all_single(mine, _mine(samples))
    _check(mine, torch.cat([sample.chunk(2)[rank] for sample in samples]))
    sizes = [[1, 3], [2, 2]]  # of rank 0's parts, and of rank 1's
    incoming = [row[rank] for row in sizes]
    mine = torch.zeros(sum(incoming), 2, device="tpu")
    dist.all_to_all_single(mine, _mine(samples), incoming, sizes[rank])
    _check(mine, torch.cat([sample.split(size)[rank] for sample, size in zip(samples, sizes, strict=True)]))
    outputs = [torch.zeros(rank + 1, device="tpu") for _ in range(2)]
    dist.all_to_all(outputs, [torch.full((to + 1,), float(rank), device="tpu") for to in range(2)])
    assert [o.tolist() for o in outputs] == [[float(sender)] * (rank + 1) for sender in range(2)]


def _exchanged(tensors: list[torch.Tensor], sizes: list[list[int]]) -> None:
    """Rank i sends `sizes[i][j]` rows of its tensor to rank j."""
    rank = dist.get_rank()
    incoming = [row[rank] for row in sizes]
    got = torch.zeros(sum(incoming), *tensors[0].shape[1:], dtype=tensors[0].dtype, device="tpu")
    dist.all_to_all_single(got, _mine(tensors), incoming, sizes[rank])
    expected = torch.cat([tensor.split(row)[rank] for tensor, row in zip(tensors, sizes, strict=True)])
    assert got.device.type == "tpu"
    assert torch.equal(got.cpu().view(torch.uint8), expected.view(torch.uint8)), (tensors[0].dtype, sizes)


def unequal_parts() -> None:
    """Of every dtype, and with parts, rows and tensors that are empty."""
    one_byte = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)
    for dtype in (*FLOATS, *INTEGERS, torch.complex64, torch.complex128, *one_byte):
        for sizes in ([[1, 3], [2, 2]], [[0, 4], [1, 3]]):
            _exchanged(_samples(dtype, 4, 2), sizes)
    for sizes in ([[0, 0], [3, 1]], [[2, 0], [0, 1]], [[0, 0], [0, 0]], [[2, 2], [2, 2]], [[17, 40], [3, 0]]):
        for rest in ((), (3, 2), (0,)):
            samples = [_sample(i, torch.float32, sum(row), *rest) for i, row in enumerate(sizes)]
            _exchanged(samples, sizes)
    rank = dist.get_rank()
    shapes = [[(2, 3), (4,)], [(), (0, 2)]]  # of what rank i sends to rank j
    for dtype in (torch.float32, torch.complex64, torch.bool, torch.float8_e4m3fn):
        sent = [[_sample(2 * i + j, torch.float32, *shapes[i][j]).to(dtype) for j in range(2)] for i in range(2)]
        got = [torch.zeros(shapes[i][rank], dtype=dtype, device="tpu") for i in range(2)]
        dist.all_to_all(got, [part.to("tpu") for part in sent[rank]])
        for part, parts in zip(got, sent, strict=True):
            assert torch.equal(part.cpu().reshape(-1).view(torch.uint8), parts[rank].reshape(-1).view(torch.uint8))
    turned = torch.arange(6.0, device="tpu").reshape(2, 3).T  # rows that do not lie one after the other
    wide = torch.zeros(3, 4, device="tpu")
    sizes = [2, 1] if rank == 0 else [1, 2]
    dist.all_to_all_single(wide[:, :2], turned, sizes, sizes)
    assert wide[:, :2].tolist() == ([[0, 3], [1, 4], [0, 3]] if rank == 0 else [[2, 5], [1, 4], [2, 5]])


def sizes_of_parts_that_change() -> None:
    """The next sizes of tensors of equal shapes compile nothing."""
    compiled: list[int] = []
    for first in (17, 18, 17):  # which fill up to 18
        _exchanged(_samples(torch.float32, 32, 1), [[first, 32 - first], [32 - first, first]])
        compiled.append(lazytpu.metrics()["compiles"])
    assert len(set(compiled)) == 1, compiled


def parts_that_disagree() -> None:
    """An error on both ranks, which can go on."""
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


def handles() -> None:
    """A handle costs nothing, and its future has the result; recording goes on."""
    mine = torch.ones(4, device="tpu") * (dist.get_rank() + 1)
    before = len(recorder().cuts)
    work = dist.all_reduce(mine, async_op=True)
    assert work is not None
    work.wait()
    (result,) = work.get_future().wait()
    assert work.is_completed()
    doubled = mine * 2
    assert len(recorder().cuts) == before
    assert doubled.tolist() == [6.0] * 4
    assert result.tolist() == [3.0] * 4


def coalesced() -> None:
    rank = dist.get_rank()
    tensors = [torch.full((n,), float(rank + 1), device="tpu") for n in (2, 3)]
    with distributed_c10d._coalescing_manager(device=torch.device("tpu")):
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 2, [3.0] * 3]
    outputs = [torch.zeros(2 * n, device="tpu") for n in (2, 3)]
    with distributed_c10d._coalescing_manager(device=torch.device("tpu"), async_ops=True) as manager:
        for output, n in zip(outputs, (2, 3), strict=True):
            dist.all_gather_single(output, torch.full((n,), float(rank), device="tpu"))
    manager.wait()
    assert [output.tolist() for output in outputs] == [[0.0] * n + [1.0] * n for n in (2, 3)]


def objects() -> None:
    rank = dist.get_rank()
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": 0}, {"rank": 1}]
    sent = [f"of {rank}", [rank] * 100]
    dist.broadcast_object_list(sent, 1)
    assert sent == ["of 1", [1] * 100]
    received: list[Any] = [None]
    dist.scatter_object_list(received, ["a", "b"] if rank == 0 else None, 0)
    assert received == ["ab"[rank]]
    onto: list[Any] | None = [None, None] if rank == 1 else None
    dist.gather_object(rank, onto, 1)
    assert onto == ([0, 1] if rank == 1 else None)


def messages() -> None:
    """P2P, both ways at once, in any order, and batched."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    if rank == 0:
        dist.send(torch.arange(4.0, device="tpu") * 2, 1)
    else:
        mine = torch.zeros(4, device="tpu")
        dist.recv(mine, 0)
        assert mine.tolist() == [0.0, 2.0, 4.0, 6.0]
    received = torch.zeros(2, 2, dtype=torch.bfloat16, device="tpu")
    sent = torch.full((2, 2), float(rank), dtype=torch.bfloat16, device="tpu")
    operations = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, sent, other)]
    for work in dist.batch_isend_irecv(operations if rank else operations[::-1]):
        work.wait()
    assert received.flatten().tolist() == [float(other)] * 4


def from_any_source() -> None:
    """`recv` without a source, which says who sent."""
    if dist.get_rank() == 0:
        dist.send(torch.arange(3.0, device="tpu"), 1)
    else:
        came = torch.zeros(3, device="tpu")
        assert dist.recv(came) == 0
        assert came.tolist() == [0, 1, 2]


def cpu_tensors() -> None:
    """They go over gloo, after what is recorded."""
    mine, device = torch.ones(2), torch.ones(2, device="tpu")
    dist.all_reduce(device)
    dist.all_reduce(mine)
    assert mine.tolist() == device.tolist() == [2.0, 2.0]
    whole = torch.zeros(2)
    dist.all_gather_single(whole, torch.full((1,), float(dist.get_rank())))
    assert whole.tolist() == [0.0, 1.0]
    dist.barrier()


def groups() -> None:
    """Groups of one rank, of both in the other order, and a group that is destroyed and made again."""
    rank = dist.get_rank()
    alone = [dist.new_group([each]) for each in range(2)][rank]
    mine = torch.ones(2, device="tpu") * (rank + 1)
    dist.all_reduce(mine, group=alone)
    assert mine.tolist() == [rank + 1.0] * 2
    for _ in range(2):
        both: Any = dist.new_group([0, 1])
        shared = torch.ones(2, device="tpu") * (rank + 1)
        dist.all_reduce(shared, group=both)
        assert shared.tolist() == [3.0, 3.0]
        dist.destroy_process_group(both)


def trusted() -> None:
    import lazytpu

    with lazytpu.options(collectives="trusted"):
        mine = torch.ones(2, device="tpu")
        dist.all_reduce(mine)
        assert mine.tolist() == [2.0, 2.0]


def modes() -> None:
    """In each mode, and while programs are still being compiled."""
    import lazytpu

    rank = dist.get_rank()
    settings: list[dict[str, Any]] = [{"mode": mode} for mode in ("lazy", "strict", "debug")]
    for n, setting in enumerate([*settings, {"mode": "fused", "background_compile": 1e-6}]):
        with lazytpu.options(**setting):
            x = torch.arange(5.0 + n, device="tpu") + rank
            y = (x * 3).sin()
            dist.all_reduce(y)
            z = y.exp().sum() + x.sum()
            dist.all_reduce(z)
            of_rank = [torch.arange(5.0 + n) + each for each in range(2)]
            total = sum((x * 3).sin() for x in of_rank)
            assert isinstance(total, torch.Tensor)
            _check(z, 2 * total.exp().sum() + of_rank[0].sum() + of_rank[1].sum())
