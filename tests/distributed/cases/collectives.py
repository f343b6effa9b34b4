"""Every collective, compared with expected values. Each function runs on both ranks."""

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
from lazytpu.distributed.control import Control
from lazytpu.frontend.tensors import recorder
from tests.distributed.cases.samples import FLOATS, INTEGERS, own, sample_of, samples_of_all

KINDS: dict[Any, Callable[..., Any]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.PRODUCT: operator.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}


def _check(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), expected)


def without_comparison() -> None:
    """The helper gets no messages; point-to-point messages and CPU tensors work as well."""
    with lazytpu.options(collectives="trusted"), pytest.MonkeyPatch.context() as patch:
        for name in ("post", "mail"):
            patch.setattr(Control, name, lambda *call, **more: pytest.fail("it is compared"))
        x, rank = torch.ones(4, device="tpu"), dist.get_rank()
        dist.all_reduce(x)
        _check(x, torch.full((4,), 2.0))
        host = torch.ones(2)
        dist.all_reduce(host)
        work: Any = dist.all_reduce(host, async_op=True)
        work.wait()
        assert host.tolist() == [4.0] * 2
        dist.send(x * 3, 1) if rank == 0 else dist.recv(x, 0)
        _check(x, torch.full((4,), 6.0 if rank else 2.0))
        dist.all_reduce(x)
        _check(x, torch.full((4,), 8.0))


def a_cut_of_many_collectives() -> None:
    """They are posted in one message of any length."""
    alone: list[Any] = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    x, group = torch.ones(2, device="tpu"), alone[dist.get_rank()]
    with lazytpu.mode("lazy"):
        for _ in range(700):
            dist.all_reduce(x, group=group)
        _check(x, torch.ones(2))


def all_reduce() -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.complex64, torch.complex128):
        for op, combine in KINDS.items():
            if dtype.is_complex and op != ReduceOp.SUM:
                continue
            samples = samples_of_all(dtype, 2, 3)
            mine = own(samples)
            dist.all_reduce(mine, op)
            _check(mine, functools.reduce(combine, samples))


def booleans() -> None:
    for op, combine in ((ReduceOp.SUM, torch.logical_or), (ReduceOp.PRODUCT, torch.logical_and)):
        samples = [sample > 0 for sample in samples_of_all(torch.float32, 7)]
        mine = own(samples)
        dist.all_reduce(mine, op)
        _check(mine, functools.reduce(combine, samples))


def averages() -> None:
    for dtype in (*FLOATS, torch.int32):
        samples = samples_of_all(dtype, 5)
        mine = own(samples)
        dist.all_reduce(mine, ReduceOp.AVG)
        total = sum(samples[1:], samples[0])
        _check(mine, total / 2 if dtype.is_floating_point else total.div(2, rounding_mode="trunc"))


def premultiplied() -> None:
    samples = samples_of_all(torch.float32, 5)
    mine = own(samples)
    half: Any = dist._make_nccl_premul_sum(0.5)  # pyright: ignore[reportPrivateImportUsage]
    dist.all_reduce(mine, half)
    _check(mine, samples[0] * 0.5 + samples[1] * 0.5)


def bitwise() -> None:
    for op, combine in ((ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or)):
        samples = samples_of_all(torch.int32, 5)
        mine = own(samples)
        dist.all_reduce(mine, op)
        _check(mine, combine(*samples))
    samples = [sample > 0 for sample in samples_of_all(torch.float32, 5)]
    mine = own(samples)
    dist.all_reduce(mine, ReduceOp.BXOR)
    _check(mine, samples[0] ^ samples[1])


def refused() -> None:
    for dtype, op in ((torch.bool, ReduceOp.AVG), (torch.float32, ReduceOp.BAND)):
        with pytest.raises(RuntimeError, match=str(dtype)):
            dist.all_reduce(torch.ones(2, device="tpu").to(dtype), op)
    x = torch.ones(2, device="tpu")
    with pytest.raises(ValueError, match="all of its tensors on 'tpu'; one is on 'cpu'"):
        dist.all_gather_single(x, torch.ones(1))
    with pytest.raises(ValueError, match="a list of 2 tensors, one for each member; got 3"):
        dist.all_gather([x] * 3, x)
    if dist.get_rank() == 0:  # other ranks pass no list
        with pytest.raises(ValueError, match="gather expected a list of 2 tensors"):
            dist.gather(x, [x])
        with pytest.raises(ValueError, match="scatter expected a list of 2 tensors"):
            dist.scatter(x, [x])
    _check(x, torch.ones(2))


def shapes() -> None:
    """No dimensions, no elements, views of larger tensors, unusual strides."""
    for shape in ((), (0,), (3, 0), (1, 1, 1)):
        samples = samples_of_all(torch.float32, *shape)
        mine = own(samples)
        dist.all_reduce(mine)
        _check(mine, samples[0] + samples[1])
    samples = samples_of_all(torch.float32, 4, 6)
    full = own(samples)
    dist.all_reduce(full[1:3, ::2])
    expected = samples[dist.get_rank()].clone()
    expected[1:3, ::2] = samples[0][1:3, ::2] + samples[1][1:3, ::2]
    _check(full, expected)
    turned = own(samples).t()
    dist.all_reduce(turned)
    _check(turned, (samples[0] + samples[1]).t())


def broadcast() -> None:
    """The bits of the root's tensor arrive unchanged, in every dtype, including -0.0 and NaN."""
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
    """Receiving ranks have unwritten memory, which must not become a constant of the collective's program."""
    is_root = dist.get_rank() == 0
    for dtype in (torch.uint8, torch.float32, torch.complex64):
        source = sample_of(0, dtype, 5)
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
        samples = samples_of_all(dtype, 2, 3)
        outputs = [torch.zeros(2, 3, dtype=dtype, device="tpu") for _ in samples]
        dist.all_gather(outputs, own(samples))
        for output, expected in zip(outputs, samples, strict=True):
            _check(output, expected)
        stacked = torch.zeros(4, 3, dtype=dtype, device="tpu")
        dist.all_gather_single(stacked, own(samples))
        _check(stacked, torch.cat(samples))


def uneven_lists() -> None:
    """The members' parts have different sizes."""
    samples = [sample_of(rank, torch.float32, rank + 1, 2) for rank in range(2)]
    outputs = [torch.zeros_like(sample).to("tpu") for sample in samples]
    dist.all_gather(outputs, own(samples))
    for output, expected in zip(outputs, samples, strict=True):
        _check(output, expected)
    inputs = [sample.to("tpu") for sample in samples]
    mine = torch.zeros_like(inputs[dist.get_rank()])
    dist.reduce_scatter(mine, inputs)
    _check(mine, samples[dist.get_rank()] * 2)


def reduce_scatter() -> None:
    for op, combine in KINDS.items():
        samples = samples_of_all(torch.float32, 4, 3)
        expected = functools.reduce(combine, samples).chunk(2)[dist.get_rank()]
        mine = torch.zeros(2, 3, device="tpu")
        dist.reduce_scatter_single(mine, own(samples), op)
        _check(mine, expected)
        listed = torch.zeros(2, 3, device="tpu")
        dist.reduce_scatter(listed, list(own(samples).chunk(2)), op)
        _check(listed, expected)
    samples = samples_of_all(torch.complex64, 4)
    mine = torch.zeros(2, dtype=torch.complex64, device="tpu")
    dist.reduce_scatter_single(mine, own(samples))
    _check(mine, sum(samples[1:], samples[0]).chunk(2)[dist.get_rank()])


def to_one_root() -> None:
    rank, samples = dist.get_rank(), samples_of_all(torch.float32, 3)
    mine = own(samples)
    dist.reduce(mine, 1)
    _check(mine, samples[0] + samples[1] if rank == 1 else samples[0])
    outputs = [torch.zeros(3, device="tpu") for _ in samples] if rank == 0 else None
    dist.gather(own(samples), outputs, 0)
    for output, expected in zip(outputs or [], samples, strict=False):
        _check(output, expected)
    received = torch.zeros(3, device="tpu")
    dist.scatter(received, [sample.to("tpu") for sample in samples] if rank == 1 else None, 1)
    _check(received, samples[rank])


def all_to_all() -> None:
    rank, samples = dist.get_rank(), samples_of_all(torch.float32, 4, 2)
    mine = torch.zeros(4, 2, device="tpu")
    dist.all_to_all_single(mine, own(samples))
    _check(mine, torch.cat([sample.chunk(2)[rank] for sample in samples]))
    sizes = [[1, 3], [2, 2]]  # rows of rank 0's parts, and of rank 1's
    incoming = [row[rank] for row in sizes]
    mine = torch.zeros(sum(incoming), 2, device="tpu")
    dist.all_to_all_single(mine, own(samples), incoming, sizes[rank])
    _check(mine, torch.cat([sample.split(size)[rank] for sample, size in zip(samples, sizes, strict=True)]))
    outputs = [torch.zeros(rank + 1, device="tpu") for _ in range(2)]
    dist.all_to_all(outputs, [torch.full((to + 1,), float(rank), device="tpu") for to in range(2)])
    assert [o.tolist() for o in outputs] == [[float(sender)] * (rank + 1) for sender in range(2)]


def handles() -> None:
    """A handle is complete at once, and its future has the result; recording continues."""
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
    """Point-to-point messages, in both directions at once, in any order, and batched."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    if rank == 0:
        dist.send(torch.arange(4.0, device="tpu") * 2, 1)
    else:
        mine = torch.zeros(4, device="tpu")
        dist.recv(mine, 0)
        assert mine.tolist() == [0.0, 2.0, 4.0, 6.0]
    received = torch.zeros(2, 2, dtype=torch.bfloat16, device="tpu")
    sent = torch.full((2, 2), float(rank), dtype=torch.bfloat16, device="tpu")
    operations = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, sent, peer)]
    for work in dist.batch_isend_irecv(operations if rank else operations[::-1]):
        work.wait()
    assert received.flatten().tolist() == [float(peer)] * 4


def from_any_source() -> None:
    """`recv` without a source returns the sender's rank."""
    if dist.get_rank() == 0:
        dist.send(torch.arange(3.0, device="tpu"), 1)
    else:
        came = torch.zeros(3, device="tpu")
        assert dist.recv(came) == 0
        assert came.tolist() == [0, 1, 2]


def cpu_tensors() -> None:
    """They go through gloo, after the recorded collectives."""
    mine, device = torch.ones(2), torch.ones(2, device="tpu")
    dist.all_reduce(device)
    dist.all_reduce(mine)
    assert mine.tolist() == device.tolist() == [2.0, 2.0]
    gathered = torch.zeros(2)
    dist.all_gather_single(gathered, torch.full((1,), float(dist.get_rank())))
    assert gathered.tolist() == [0.0, 1.0]
    dist.barrier()


def groups() -> None:
    """Groups of one rank, of both in reverse order, and a group that is destroyed and created again."""
    rank = dist.get_rank()
    alone = [dist.new_group([rank_of]) for rank_of in range(2)][rank]
    mine = torch.ones(2, device="tpu") * (rank + 1)
    dist.all_reduce(mine, group=alone)
    assert mine.tolist() == [rank + 1.0] * 2
    for _ in range(2):
        reversed_group: Any = dist.new_group([0, 1])
        shared = torch.ones(2, device="tpu") * (rank + 1)
        dist.all_reduce(shared, group=reversed_group)
        assert shared.tolist() == [3.0, 3.0]
        dist.destroy_process_group(reversed_group)


def trusted() -> None:
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
            of_rank = [torch.arange(5.0 + n) + offset for offset in range(2)]
            total = sum((x * 3).sin() for x in of_rank)
            assert isinstance(total, torch.Tensor)
            _check(z, 2 * total.exp().sum() + of_rank[0].sum() + of_rank[1].sum())
